"""What the official tools let pass: the order of a run, its windows, the policies, our own log."""
