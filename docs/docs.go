// Package docs gives programs the parts of these pages that they show.
package docs

import (
	_ "embed"
	"regexp"
	"strings"
	"sync"
)

//go:embed counters.md
var counters string

var row = regexp.MustCompile("(?m)^\\| `([a-z_0-9*]+)` \\| (.*) \\|$")

// meanings are the rows of counters.md, of interfaces and of devices.
var meanings = sync.OnceValue(func() (of [2]map[string]string) {
	_, tables, _ := strings.Cut(counters, "## Counters of an interface")
	ofInterface, ofDevice, _ := strings.Cut(tables, "## Counters of a software HCA")
	for kind, text := range []string{ofInterface, ofDevice} {
		of[kind] = map[string]string{}
		for _, r := range row.FindAllStringSubmatch(text, -1) {
			of[kind][r[1]] = strings.ReplaceAll(r[2], "`", "")
		}
	}
	return of
})

// InterfaceCounter returns the meaning of a counter of an interface.
func InterfaceCounter(name string) string {
	for _, family := range []string{"_wc_", "tap_segments_", "tap_bytes_", "tap_wait_ns_"} {
		if i := strings.Index(name, family); i >= 0 {
			name = name[:i] + family + "*"
		}
	}
	return meanings()[0][name]
}

// DeviceCounter returns the meaning of a counter of a device, or "" for one of a driver.
func DeviceCounter(name string) string { return meanings()[1][name] }
