package diagnose

import "testing"

// The first alternative counts whose words are all known. Their values are never templates themselves.
func TestFill(t *testing.T) {
	w := words{"netdev", "eth0", "pid", 7, "evil", "a | {pid} b", "pid", 8}
	for text, want := range map[string]string{
		"":                             "",
		"constant":                     "constant",
		"ip link set {netdev} up":      "ip link set 'eth0' up",
		"kill {pid}":                   "kill '8'",
		"kill {owner}":                 "",
		"kill {owner} | kill {pid}":    "kill '8'",
		"{pid} of {owner} | none":      "none",
		"see {evil} | {pid}":           "see 'a | {pid} b'",
		"{netdev}{pid}":                "'eth0''8'",
		"{owner} | {missing} | {pid}!": "'8'!",
	} {
		if got := w.fill(text, func(word string) string { return "'" + word + "'" }); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
