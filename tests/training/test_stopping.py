"""Signals that end a training."""

import signal
import threading

import pytest

from depict.training.stopping import StopSignals


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_is_a_request_and_the_former_handler_comes_back(name):
    former = signal.getsignal(name)
    with StopSignals() as signals:
        assert not signals.requested
        signal.raise_signal(name)
        assert signals.requested
    assert signal.getsignal(name) is former


def test_a_second_ctrl_c_stops_at_once_and_a_second_sigterm_does_not():
    with StopSignals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_hangup_that_is_ignored_stays_ignored():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert not signals.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_other_threads_leave_the_handlers_alone():
    former, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with StopSignals() as signals:
            seen.append((signal.getsignal(signal.SIGINT) is former, signals.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(True, False)]
