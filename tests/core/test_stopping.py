"""Signals that wait for work that must be whole."""

import signal
import threading
import time

import pytest

from stages.core import stopping
from stages.core.stopping import Stopped, impatient, undisturbed


@pytest.fixture(autouse=True)
def handled():
    before = {signum: signal.getsignal(signum) for signum in stopping.SIGNALS}
    stopping.listen()
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_signal_is_raised_where_the_process_stands():
    with pytest.raises(Stopped) as stopped:
        signal.raise_signal(signal.SIGTERM)
    assert (stopped.value.signum, stopped.value.code, stopped.value.how()) == (15, 143, "stopped by SIGTERM")


def test_a_signal_waits_until_the_work_is_whole():
    done = []
    with pytest.raises(Stopped), undisturbed():
        signal.raise_signal(signal.SIGTERM)
        done.append("first")
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            done.append("second")
        done.append("third")
    assert done == ["first", "second", "third"]
    with undisturbed():  # it was raised once
        pass


def test_a_failure_of_the_work_is_not_lost_behind_the_signal():
    with pytest.raises(Stopped) as stopped, undisturbed():
        signal.raise_signal(signal.SIGTERM)
        raise KeyError("work")
    assert isinstance(stopped.value.__context__, KeyError)


def test_a_second_signal_does_not_break_off_what_the_first_one_has_put_in_order():
    done = []
    with pytest.raises(Stopped) as stopped:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append("saved")
            with undisturbed():
                signal.raise_signal(signal.SIGINT)
            done.append("told")
    assert (done, stopped.value.signum) == (["saved", "told"], signal.SIGTERM)


def test_a_signal_does_not_take_the_place_of_the_error_that_the_run_ends_with():
    with pytest.raises(KeyError):
        try:
            raise KeyError("work")
        except KeyError:
            stopping.ends()
            with undisturbed():
                signal.raise_signal(signal.SIGTERM)
            raise


def test_what_waits_for_good_once_a_signal_has_ended_it_is_ended_again_and_again():
    """As a library whose first cleaning up swallows what ended it, and whose second waits for a process that is gone."""
    never, begun = threading.Event(), time.monotonic()
    with pytest.raises(Stopped) as stopped, impatient(0.2):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            try:
                never.wait(30)
            except Stopped:
                never.wait(30)
    assert (stopped.value.how(), stopped.value.again) == ("interrupted", True)
    assert 0.3 < time.monotonic() - begun < 10
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_signal_outside_such_a_block_is_raised_once():
    with impatient(0.05):
        pass
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGINT)
    time.sleep(0.2)
