"""The commands that an operator calls: doctor, inspect, tune, watch, acceptance, fleet, pack."""
