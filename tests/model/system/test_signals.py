"""Tests of signals."""

import os
import signal

import pytest

from model.system.signals import catch_signals


def test_signals_are_caught_temporarily_except_ignored_ones():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):  # the second of a kind
                os.kill(os.getpid(), signal.SIGINT)
        assert caught == [signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
