"""The subcommands of ``estp``, one a file."""
