package vm

import (
	"encoding/json"
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
	Counters map[string]int `json:"counters"`
}

type ifaceStatus struct {
	QP *struct {
		QPN string `json:"qpn"`
		GID string `json:"gid"`
	} `json:"qp"`
	Counters map[string]int `json:"counters"`
	Recovery recovery       `json:"recovery"`
}

func (s *ifaceStatus) count(name string) int { return s.Counters[name] }

// statuses returns the error statuses of all completions so far, with their counts.
func (s *ifaceStatus) statuses() map[string]int {
	all := map[string]int{}
	for name, n := range s.Counters {
		if strings.Contains(name, "_wc_") && n > 0 {
			all[name] = n
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
func (e *endpoint) says(text string) bool { return strings.Contains(e.daemon.Stderr(), text) }
