"""Tests of signals."""

import os
import signal

import pytest
from model.system.signals import catch_signals


def test_signals_are_caught_temporarily_except_ignored_ones(capfd):
    """The first one is answered at once."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGTERM)
            assert "saves and stops after this step or evaluation" in capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGTERM)  # as torchrun passes it on
            os.kill(os.getpid(), signal.SIGINT)
            assert not capfd.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert caught == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
