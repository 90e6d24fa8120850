"""`python -m runlog`: the schema of our log, and the end of a log whose ranks are gone."""

import json
import sys
from pathlib import Path

from runlog.errors import RunError, one_line, print_to_reader
from runlog.json_schema import json_schema
from runlog.options import Parser
from runlog.text import encodable
from runlog.writer import close_log_of_killed_run


@one_line
def main() -> int:
    """Run one of two commands, `schema` or `close LOG REASON`, and return the exit status of the process.

    `schema` prints the JSON Schema of the lines of a log.

    `close LOG REASON` adds an end to the log of a killed run, if the end is missing, and prints why the run ended.

    Returns:
        0 if the command succeeded. 1 if the log cannot be read or written or is not a file, or if the schema cannot be
        printed. For a wrong command line the function does not return: the parser ends the process with status 2.
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
        # REASON, unless the log has an end that states another reason.
        why_run_ended = close_log_of_killed_run(args.log, args.reason)
    except RunError as error:  # the log cannot be read or written: "REASON; the log cannot be closed as aborted: ..."
        # Printed on stdout, where launch/trials.sh reads why the run ended. @one_line would print it on stderr.
        print(encodable(str(error)))
        return 1
    print(encodable(why_run_ended))
    return 0


if __name__ == "__main__":
    sys.exit(main())
