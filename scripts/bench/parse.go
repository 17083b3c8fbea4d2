package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// received is the payload that arrived in one run of iperf3.
type received struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func (r received) gbits() float64 { return float64(r.Bytes) * 8 / r.Seconds / 1e9 }

// parseIperf reads the output of iperf3 --json. iperf3 may exit with 0 after an error.
func parseIperf(text []byte) (received, error) {
	var result struct {
		Error string
		End   struct {
			Received received `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return received{}, fmt.Errorf("the output of iperf3: %w", err)
	}
	switch r := result.End.Received; {
	case result.Error != "":
		return received{}, errors.New("iperf3: " + result.Error)
	case r.Bytes == 0 || r.Seconds == 0:
		return received{}, errors.New("iperf3: nothing arrived")
	default:
		return r, nil
	}
}

var percentile = regexp.MustCompile(`percentile (\d+\.\d+) = +(\d+\.\d+)`)

// parseSockperf reads the median and the 99th percentile of the round trips, in microseconds. On
// a machine that is too busy, sockperf prints none.
func parseSockperf(text string) (median, p99 float64, err error) {
	found := map[string]float64{}
	for _, m := range percentile.FindAllStringSubmatch(text, -1) {
		found[m[1]], _ = strconv.ParseFloat(m[2], 64) // the expression matches only numbers
	}
	median, ok1 := found["50.000"]
	p99, ok2 := found["99.000"]
	if !ok1 || !ok2 {
		return 0, 0, errors.New("sockperf printed no percentiles:" + indent(text))
	}
	return median, p99, nil
}

// userHZ is the unit of times in /proc: 100 on every architecture that Go supports.
const userHZ = 100

// parseStat reads the user and system time of /proc/PID/stat (proc_pid_stat(5)), fields 14
// and 15. Field 2, the program's name in parentheses, may itself contain any character.
func parseStat(text string) (time.Duration, error) {
	const state, utime, stime = 3, 14, 15
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= stime-state {
		return 0, fmt.Errorf("/proc/PID/stat has only %d fields after the name", len(fields))
	}
	user, err := strconv.ParseInt(fields[utime-state], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("user time in /proc/PID/stat: %w", err)
	}
	system, err := strconv.ParseInt(fields[stime-state], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("system time in /proc/PID/stat: %w", err)
	}
	return time.Duration(user+system) * time.Second / userHZ, nil
}
