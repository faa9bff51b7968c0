"""Which ranks are present, and who is late: pure, with times that the tests choose."""

from __future__ import annotations

from switch_emu.switch.core.membership import Presence
from switch_emu.switch.core.statements import Lateness

S = 10**9
LEFT, RIGHT, PAIR = 0b0001, 0b0010, 0b1100


def all_in(drop_after_ns: int | None = 2 * S) -> Presence:
    presence = Presence((LEFT, RIGHT, PAIR), drop_after_ns)
    for ranks in (LEFT, RIGHT, PAIR):
        presence.joined(0, ranks)
        presence.reported(ranks, ranks, (1, 0))
    return presence


class TestPresence:
    def test_a_history(self) -> None:
        """Goal: each event and who is present after it, in one place."""
        presence = Presence((LEFT, RIGHT, PAIR), 2 * S)
        for event, given, present_ns, present in (
            ("joined", (0, LEFT), 0, LEFT | RIGHT | PAIR),
            ("joined", (1 * S, PAIR), 2 * S, LEFT | PAIR),  # RIGHT did not come in time
            ("reported", (PAIR, 0b0100, (1, 1)), 2 * S, LEFT | 0b0100),
            ("joined", (3 * S, RIGHT), 3 * S, LEFT | RIGHT | 0b0100),
            ("lost", (4 * S, LEFT), 6 * S - 1, LEFT | RIGHT | 0b0100),
            ("lost", (5 * S, LEFT), 6 * S, RIGHT | 0b0100),  # counted from the first time
            ("silent", (7 * S, RIGHT), 7 * S, 0b0100),
        ):
            getattr(presence, event)(*given)
            assert presence.present(present_ns) == present, event

    def test_nobody_is_missed_without_a_patience(self) -> None:
        """Goal: where the job waits, it waits."""
        presence = all_in(None)
        presence.lost(0, RIGHT)
        presence.silent(0, LEFT)
        assert presence.present(10**6 * S) == LEFT | RIGHT | PAIR
        assert presence.next_ns(0) is None

    def test_a_switch_reports_which_of_its_ranks_are_present(self) -> None:
        """Goal: its latest report counts, not the one that came last."""
        presence = all_in()
        presence.reported(PAIR, 0b0100, (1, 2))
        presence.reported(PAIR, PAIR, (1, 1))
        assert presence.present(0) == LEFT | RIGHT | 0b0100
        presence.reported(PAIR, PAIR, (2, 0))  # another start of it
        assert presence.present(0) == LEFT | RIGHT | PAIR

    def test_each_return_takes_longer(self) -> None:
        """Goal: a rank that is lost again and again does not make the others compute for nothing:
        it is in at once the first time, then after the patience, then after twice as long."""
        presence, now_ns = all_in(), 0
        for pause_ns in (0, 2 * S, 4 * S, 8 * S):
            presence.silent(now_ns, RIGHT)
            presence.joined(now_ns, RIGHT)
            assert bool(presence.present(now_ns) & RIGHT) == (pause_ns == 0)
            now_ns += pause_ns
            assert not presence.present(now_ns - 1) & RIGHT or pause_ns == 0
            assert presence.present(now_ns) & RIGHT

    def test_a_switch_that_starts_anew_gives_up_who_never_comes(self) -> None:
        """Goal: it waits from the first Hello on, and not for ever."""
        presence = Presence((LEFT, RIGHT, PAIR), 2 * S)
        assert not presence.has_given_up(100 * S)
        presence.joined(100 * S, LEFT)
        assert presence.next_ns(100 * S) == 102 * S
        assert not presence.has_given_up(102 * S - 1)
        assert presence.has_given_up(102 * S)
        presence.joined(103 * S, RIGHT)
        assert presence.has_given_up(103 * S)
        assert presence.present(103 * S) == LEFT | RIGHT


class TestLateness:
    def test_the_limit_follows_what_is_usual(self) -> None:
        """Goal: median and six median absolute deviations; a single outlier does not move it."""
        late = Lateness(1)
        for step, lateness_ns in enumerate([100, 110, 90, 100, 10**9]):
            late.came(1000, step, LEFT)
            late.came(1000, step, RIGHT)
            late.came(1000 + lateness_ns, step, PAIR)
            late.complete(step)
        assert late.usual_ns == 0
        assert late.limit_ns < 1000

    def test_nobody_is_late_before_somebody_came(self) -> None:
        """Goal: a deadline counts from the median of those who came."""
        late = Lateness(50)
        assert late.deadline_ns(7) is None
        late.came(1000, 7, LEFT)
        assert late.deadline_ns(7) == 1050
        late.came(1100, 7, RIGHT)
        assert late.deadline_ns(7) == 1100
        late.forget()
        assert late.deadline_ns(7) is None

    def test_a_repeated_commit_is_not_noted(self) -> None:
        """Goal: children repeat a commit until its step is decided; a repetition after all have
        committed leaves nothing behind, and makes nobody late. A new attempt does steps again."""
        late = Lateness(50)
        for step in range(3):
            late.came(1000, step, LEFT)
            late.came(1000, step, RIGHT)
            late.complete(step)
            late.came(2000, step, LEFT)
            assert late.deadline_ns(step) is None
        late.forget()
        late.came(3000, 1, LEFT)
        assert late.deadline_ns(1) == 3050

    def test_slow_steps_allow_more(self) -> None:
        """Goal: where ranks usually are 10 s apart, give or take 1 s, one that is 11 s late is
        not."""
        late = Lateness(1)
        for step in range(20):
            late.came(0, step, LEFT)
            late.came((20 + step % 3) * S, step, RIGHT)
            late.complete(step)
        assert late.limit_ns > 11 * S
