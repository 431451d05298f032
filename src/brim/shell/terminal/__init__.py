"""The user's own shell on a pseudo-terminal, for as long as brim runs.

It is an ordinary interactive shell. Its terminal is relayed to brim's own. It reads command lines
from a pipe that the programs it starts never see, so that keys typed too early never become
commands, and reports the status of each command through a named pipe. Between commands it keeps
its folder, variables, aliases and jobs.
"""
