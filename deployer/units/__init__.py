"""Pure: unit files and commands as people write them -> their meaning, their mistakes, a service and a profile."""
