"""Rules that the official tools lack: the order of a run, its pace, its claims, copies, and this project's own log."""
