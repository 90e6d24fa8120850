"""`python -m runlog`: the schema of our log, and the end of a log whose ranks are gone."""

import json
import sys
from pathlib import Path

from runlog.errors import RunError, one_line, print_to_reader
from runlog.json_schema import json_schema
from runlog.options import Parser
from runlog.writer import close_log_of_killed_run


@one_line
def main() -> int:
    """Run the command that the command line names, and return the exit status of the process.

    `schema` prints the JSON Schema of the lines of a log. `close LOG REASON` completes the log of a run that was
    killed, and prints why the run ended:

        LOG has no end yet:             an end is added that states REASON, which is printed
        LOG has an end with a reason:   nothing is added, and that reason is printed
        LOG has an end without one:     nothing is added, and REASON is printed
        LOG does not exist:             it is not created, and REASON is printed
        LOG cannot be read or written:  REASON is printed, and why; likewise if LOG is no file

    Returns:
        0 if the command succeeded. 1 if the log cannot be read or written or is no file, or if the schema cannot be
        printed. A wrong command line does not return: the parser ends the process with status 2.
    """
    parser = Parser(prog="python -m runlog", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("schema", help="print the schema of a line of a log, as JSON Schema")
    close_parser = commands.add_parser("close", help="close the log of a run whose ranks are gone; print why it ended")
    close_parser.add_argument("log", type=Path)
    close_parser.add_argument("reason")
    args = parser.parse_args()
    if args.command == "schema":
        print_to_reader(json.dumps(json_schema(), indent=1))
        return 0
    try:
        print(close_log_of_killed_run(args.log, args.reason))
    except RunError as error:
        # The message begins with REASON. It is printed on stdout, and not left to @one_line, which prints on stderr:
        # launch/trials.sh takes from stdout why the run ended.
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
