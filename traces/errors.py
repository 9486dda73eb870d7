"""The one error that is the user's to mend."""


class InputError(ValueError):
    """Bad input: the message says what is wrong, where, and what to do.

    The command line prints the message as it is and exits with 2, so it is a whole
    sentence that names the file, line, column, request or option, and the value found there.
    """
