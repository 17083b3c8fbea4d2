package diagnose

import (
	"fmt"
	"strings"
)

// words are names and their values, by turns, as log/slog takes them. The last value of a name counts.
type words []any

func (w words) find(name string) (any, bool) {
	for i := len(w) - 2; i >= 0; i -= 2 {
		if w[i] == name {
			return w[i+1], true
		}
	}
	return nil, false
}

// fill replaces each {name} of a text by its value. A text may have alternatives, separated by " | ": the
// first one whose names all have values is used. Without one, fill returns "".
func (w words) fill(text string, format func(word string) string) string {
	for rest := range strings.SplitSeq(text, " | ") {
		var out strings.Builder
		for known := true; known; {
			before, after, found := strings.Cut(rest, "{")
			out.WriteString(before)
			if !found {
				return out.String()
			}
			var name string
			var value any
			name, rest, _ = strings.Cut(after, "}")
			value, known = w.find(name)
			out.WriteString(format(fmt.Sprint(value)))
		}
	}
	return ""
}
