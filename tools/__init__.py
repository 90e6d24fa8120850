"""The commands that an operator calls: doctor, inspect, tune, watch, acceptance, fleet, pack."""

if __name__ == "tools":  # else an installed wheel is being read, whose packages are not on the import path yet
    from runlog import interpreter

    interpreter.refuse_unfit("tools")
