"""The error of a wrong input. All folders import this file."""


class UserError(ValueError):
    """A flag, a file or a text is wrong. The command prints a line and ends with status 2."""
