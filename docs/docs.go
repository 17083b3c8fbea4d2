// Package docs has the names of counters, and their meanings from the tables of counters.md.
package docs

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed counters.md
var page string

// meanings returns the meanings of the counters of an interface and of those of a device, without Markdown.
var meanings = sync.OnceValues(func() (ofInterface, ofDevice map[string]string) {
	_, tables, _ := strings.Cut(page, "\n## Counters of an interface\n")
	ofIf, ofDev, _ := strings.Cut(tables, "\n## Counters of a software HCA\n")
	return rows(ofIf), rows(ofDev)
})

// rows returns the rows "| `name` | meaning |" of tables. A * in a name stands for any ending.
func rows(tables string) map[string]string {
	of := map[string]string{}
	for line := range strings.Lines(tables) {
		if row, found := strings.CutPrefix(line, "| `"); found {
			name, meaning, _ := strings.Cut(row, "` | ")
			of[name] = strings.ReplaceAll(strings.TrimSuffix(meaning, " |\n"), "`", "")
		}
	}
	return of
}

// InterfaceCounter returns the meaning of a counter of an interface, or "".
func InterfaceCounter(name string) string {
	for _, family := range []string{"_wc_", "tap_segments_", "tap_bytes_", "tap_wait_ns_"} {
		if i := strings.Index(name, family); i >= 0 {
			name = name[:i] + family + "*"
		}
	}
	ofInterface, _ := meanings()
	return ofInterface[name]
}

// DeviceCounter returns the meaning of a counter of a device, or "" for one of a driver.
func DeviceCounter(name string) string {
	_, ofDevice := meanings()
	return ofDevice[name]
}

// Lost reports whether a counter counts lost frames, by the rule in counters.md. It is for a status in JSON,
// which has no kinds of counters.
func Lost(name string) bool {
	return strings.Contains(name, "_drop") || strings.Contains(name, "_wc_") && name != "rx_wc_wr_flush_err" ||
		strings.HasPrefix(name, "kernel_") && strings.HasSuffix(name, "_errors")
}
