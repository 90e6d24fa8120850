"""`python -m runlog`: the schema of our log, and the end of a log whose ranks are gone."""

import json
import sys
from pathlib import Path

from runlog.errors import RunError, one_line, print_to_reader
from runlog.json_schema import json_schema
from runlog.options import Parser
from runlog.writer import close_for_dead


@one_line
def main() -> int:
    """Run the command `schema` or `close`, and return the exit status.

    `schema` prints the JSON Schema of a log's lines. `close` adds the end that a killed run could not write to its log,
    and prints why the run ended. The status is 1 if that log cannot be read or written, else 0.
    """
    parser = Parser(prog="python -m runlog", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("schema", help="print the schema of a line of a log, as JSON Schema")
    close = commands.add_parser("close", help="close the log of a run whose ranks are gone; print why it ended")
    close.add_argument("log", type=Path)
    close.add_argument("reason")
    args = parser.parse_args()
    if args.command == "schema":
        print_to_reader(json.dumps(json_schema(), indent=1))
        return 0
    try:
        print(close_for_dead(args.log, args.reason))
    except RunError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
