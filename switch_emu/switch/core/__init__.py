"""The switch as a pure state machine: `SwitchCore`."""

from switch_emu.switch.core.switch import SwitchCore

__all__ = ["SwitchCore"]
