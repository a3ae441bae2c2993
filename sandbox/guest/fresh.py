"""A script in an interpreter that has imported nothing. Usage: python -S fresh.pyc SCRIPT [ARGUMENT …]"""

import sys

import init
import run

if __name__ == "__main__":
    init.do_what_site_does()
    run.run_script(sys.argv[1], sys.argv[2:])
