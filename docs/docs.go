// Package docs has the meanings of the counters, from which the tables of counters.md are made.
package docs

import (
	"fmt"
	"strings"
	"sync"
)

// counter is a counter with its meaning, in Markdown. A * in the name stands for any ending.
type counter struct{ name, meaning string }

// heading is that of the first table in counters.md.
const heading = "## Counters of an interface\n"

// tables returns the tables of counters.md.
func tables() string {
	var b strings.Builder
	table := func(head string, counters []counter) {
		fmt.Fprintf(&b, "\n%s\n\n| counter | meaning |\n|---|---|\n", head)
		for _, c := range counters {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.name, c.meaning)
		}
	}
	b.WriteString(heading)
	table("Frames from the host (TX):", hostCounters)
	table("Datagrams from the fabric (RX):", fabricCounters)
	table("The peer table:", peerCounters)
	table("Others:", otherCounters)
	table("## Counters of a software HCA", softCounters)
	table("## Counters of any device", deviceCounters)
	b.WriteString("\nA real HCA adds those of its driver, from `/sys/class/infiniband`.\n")
	return b.String()
}

// meanings returns a function with the meanings of counters, without Markdown.
func meanings(tables ...[]counter) func() map[string]string {
	return sync.OnceValue(func() map[string]string {
		of := map[string]string{}
		for _, counters := range tables {
			for _, c := range counters {
				of[c.name] = strings.ReplaceAll(c.meaning, "`", "")
			}
		}
		return of
	})
}

var (
	ofInterface = meanings(hostCounters, fabricCounters, peerCounters, otherCounters)
	ofDevice    = meanings(softCounters, deviceCounters)
)

// InterfaceCounter returns the meaning of a counter of an interface, or "".
func InterfaceCounter(name string) string {
	for _, family := range []string{"_wc_", "tap_segments_", "tap_bytes_", "tap_wait_ns_"} {
		if i := strings.Index(name, family); i >= 0 {
			name = name[:i] + family + "*"
		}
	}
	return ofInterface()[name]
}

// DeviceCounter returns the meaning of a counter of a device, or "" for one of a driver.
func DeviceCounter(name string) string { return ofDevice()[name] }

// Lost reports whether a counter counts lost frames, by the rule in counters.md. It is for a status in JSON,
// which has no kinds of counters.
func Lost(name string) bool {
	return strings.Contains(name, "_drop") || strings.Contains(name, "_wc_") && name != "rx_wc_wr_flush_err" ||
		strings.HasPrefix(name, "kernel_") && strings.HasSuffix(name, "_errors")
}
