package vm

import (
	"encoding/json"
	"fmt"
	"strings"
)

// status is what these tests use of `ipoibd status --json`.
type status struct {
	Devices    []deviceStatus `json:"devices"`
	Interfaces []ifaceStatus  `json:"interfaces"`
}

type deviceStatus struct {
	State string `json:"state"`
	Opens int    `json:"opens"`
	Attr  struct {
		NodeGUID string `json:"node_guid"`
	} `json:"attr"`
	Coordinator struct {
		Phase   string   `json:"phase"`
		Members []string `json:"members"`
	} `json:"coordinator"`
	Counters []counter `json:"counters"`
}

type ifaceStatus struct {
	QP *struct {
		QPN uint32 `json:"qpn"`
		GID string `json:"gid"`
	} `json:"qp"`
	Counters []counter `json:"counters"`
	Recovery recovery  `json:"recovery"`
}

type counter struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

// value returns the value of a counter, or 0 if there is none.
func value(counters []counter, name string) int {
	for _, c := range counters {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

func (s *ifaceStatus) count(name string) int { return value(s.Counters, name) }

// statuses returns the error statuses of all completions so far, with their counts.
func (s *ifaceStatus) statuses() map[string]int {
	all := map[string]int{}
	for _, c := range s.Counters {
		if strings.Contains(c.Name, "_wc_") && c.Value > 0 {
			all[c.Name] = c.Value
		}
	}
	return all
}

// recovery counts the rungs that were entered, and the reasons.
type recovery struct {
	Rungs   map[string]int `json:"rungs"`
	Reasons map[string]int `json:"reasons"`
}

// status returns the daemon's view of its device and of ib0.
func (e *endpoint) status() (deviceStatus, ifaceStatus) {
	e.tb.Helper()
	out := e.Run("ipoibd", "status", "--json", "--control", e.control)
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Devices) != 1 || len(s.Interfaces) != 1 {
		e.tb.Fatalf("ipoibd status: %v\n%s", err, out)
	}
	return s.Devices[0], s.Interfaces[0]
}

// waitDevice waits until ok returns true for the daemon's device.
func (e *endpoint) waitDevice(what string, ok func(deviceStatus) bool) {
	e.tb.Helper()
	eventually(e.tb, what, func() bool {
		d, _ := e.status()
		return ok(d)
	})
}

// says reports whether the daemon has logged a text.
func (e *endpoint) says(format string, args ...any) bool {
	return strings.Contains(e.daemon.Stderr(), fmt.Sprintf(format, args...))
}
