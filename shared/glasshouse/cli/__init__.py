"""The command line. Each module parses the arguments of one group of commands and calls the library,
which it imports only when a command runs, so that `glasshouse --help` is fast."""
