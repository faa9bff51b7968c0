"""The SmartSwitch: sums what workers push and multicasts weights."""
