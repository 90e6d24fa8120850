"""What an operator calls: doctor, inspect, tune, watch, acceptance, fleet, pack."""
