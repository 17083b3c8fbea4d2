package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// metric names a figure in bench.json.
type metric string

const (
	tcp1There metric = "tcp_1_stream_a_to_b_gbps"
	tcp1Back  metric = "tcp_1_stream_b_to_a_gbps"
	tcp4There metric = "tcp_4_streams_a_to_b_gbps"
	tcp4Back  metric = "tcp_4_streams_b_to_a_gbps"
	udp64     metric = "udp_64_bytes_kpps"
	udp1400   metric = "udp_1400_bytes_kpps"
	rttMedian metric = "round_trip_median_us"
	rttP99    metric = "round_trip_p99_us"
	rttLoaded metric = "round_trip_beside_tcp_p99_us"
	cpuPerGB  metric = "daemons_cpu_seconds_per_gb"
)

// figures are the results of one row in one round. A failed measurement has none.
type figures map[metric]float64

// row is a contender at an MTU.
type row struct {
	Contender string    `json:"contender"`
	MTU       int       `json:"mtu"`
	Rounds    []figures `json:"rounds"`
	Failures  []string  `json:"failures,omitempty"`
}

func (r row) name() string { return fmt.Sprintf("%s/%d", r.Contender, r.MTU) }

// median returns the median over the rounds that have the figure.
func (r row) median(m metric) (value float64, ok bool) {
	var values []float64
	for _, f := range r.Rounds {
		if v, ok := f[m]; ok {
			values = append(values, v)
		}
	}
	return median(values)
}

// median returns the middle value, or the mean of the two in the middle.
func median(values []float64) (value float64, ok bool) {
	if len(values) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2, true
}

// report is the result of a run.
type report struct {
	Started    time.Time         `json:"started"`
	Version    string            `json:"ipoibd"`
	Kernel     string            `json:"kernel"`
	CPUs       int               `json:"cpus"`
	Congestion string            `json:"tcp_congestion_control"`
	Load       float64           `json:"load_average"` // of the minute before the run
	Rounds     int               `json:"rounds"`
	done       int               // rounds of earlier runs
	Seconds    int               `json:"seconds"`
	Rows       []row             `json:"rows"`
	Missing    map[string]string `json:"missing,omitempty"` // contender -> why
}

// newReport describes the run and the machine.
func newReport(ctx context.Context) *report {
	line := func(text []byte, err error) string {
		if err != nil {
			return "unknown"
		}
		first, _, _ := strings.Cut(string(text), "\n")
		return first
	}
	var load float64 // remains 0 if the kernel does not report it
	_, _ = fmt.Sscan(line(os.ReadFile("/proc/loadavg")), &load)
	return &report{
		Started:    time.Now().UTC().Truncate(time.Second),
		Version:    line(exec.CommandContext(ctx, *ipoibd, "version").Output()),
		Kernel:     line(os.ReadFile("/proc/sys/kernel/osrelease")),
		CPUs:       runtime.NumCPU(),
		Congestion: line(os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")),
		Load:       load,
		Rounds:     *rounds,
		Seconds:    *seconds,
		Missing:    map[string]string{},
	}
}

// failed reports whether any contender failed in any round.
func (r *report) failed() bool {
	return slices.ContainsFunc(r.Rows, func(row row) bool { return len(row.Failures) > 0 })
}

// find returns the index of a contender's row, or -1.
func (r *report) find(contender string, mtu int) int {
	return slices.IndexFunc(r.Rows, func(row row) bool { return row.Contender == contender && row.MTU == mtu })
}

// resume adds the rounds of an earlier run of the same program with the same length of measurements.
func (r *report) resume(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	if err != nil {
		return err
	}
	var old report
	if err := json.Unmarshal(text, &old); err != nil {
		return fmt.Errorf("read %s/bench.json: %w", dir, err)
	}
	if old.Version != r.Version || old.Seconds != r.Seconds {
		return fmt.Errorf("cannot add to the rounds of %q with -seconds=%d: this run is of %q with -seconds=%d",
			old.Version, old.Seconds, r.Version, r.Seconds)
	}
	r.Started, r.Rows, r.done = old.Started, old.Rows, old.Rounds
	r.Rounds += r.done
	r.Load = max(r.Load, old.Load)
	return nil
}

// save writes bench.json and bench.svg. With a step, it also updates the documentation.
func (r *report) save(dir, step string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	picture := []byte(r.picture())
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "bench.json"), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "bench.svg"), picture, 0o644))
	if err != nil || step == "" {
		return err
	}
	page, err := os.OpenFile("docs/performance.md", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = page.WriteString(r.markdown(step))
	return errors.Join(err, page.Close(), os.WriteFile("docs/performance.svg", picture, 0o644))
}
