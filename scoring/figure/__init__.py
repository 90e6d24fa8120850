"""From records to figures: protocols, one run, several runs, intervals, comparison, history, warnings."""
