package report

import (
	"fmt"
	"regexp"
	"strings"
)

var harmless = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// Command formats a command for a shell. Its arguments are quoted, because a name may come from
// the configuration of a container, or from a process that only claims to be a daemon. Put the command at the
// end of a text, or alone, and not in quotes: it may contain quotes itself.
func Command(format string, args ...any) string {
	for i, a := range args {
		if text := fmt.Sprint(a); !harmless.MatchString(text) {
			args[i] = "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
		}
	}
	return fmt.Sprintf(format, args...)
}
