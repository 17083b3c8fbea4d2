package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

var now = time.Unix(1e9, 0)

// sample returns a status in which every field has a value, with all counters of
// docs/counters.md.
func sample(t testing.TB) report.Status {
	t.Helper()
	var d hca.Durations
	for _, took := range []time.Duration{20 * time.Millisecond, 2 * time.Second, time.Hour} {
		d.Observe(took)
	}
	repairs := report.NewHistogram(&d)
	recovery := &report.Recovery{
		State: "resetting", Rung: "reset_qp", Reason: "qp_error", Since: now.Add(-time.Second), Outage: journal.Seconds(1500 * time.Millisecond),
		Recovered: 3, Rungs: map[string]uint64{"reset_qp": 4}, Reasons: map[string]uint64{"qp_error": 5}, FoundRTS: 6, Absorbed: 7, Stale: 8,
		Repairs: map[string]report.Histogram{"reset_qp": repairs}, OutageTotal: journal.Seconds(90 * time.Second),
	}
	ofInterface, ofDevice := documented(t)
	kernel := report.Counters{}
	maps.DeleteFunc(ofInterface, func(name string, c report.Count) bool {
		of := strings.HasPrefix(name, "tap_") || strings.HasPrefix(name, "kernel_")
		if of {
			kernel[name] = c
		}
		return of
	})
	ofDevice["some_driver-counter"] = report.Count{Value: 9}
	return report.Status{
		Time: now, Version: "0.9.0 (539e721)",
		Interfaces: []report.Interface{{
			Name: "ib0", Device: "soft", Port: 1, Time: now.Add(-time.Second), Since: now.Add(-time.Minute), State: "up", Reason: "none", Carrier: true,
			MTU: 1444, Lanes: 2, SendWRs: 128, RecvWRs: 256, QP: &report.QP{PKey: 0xffff}, Groups: []report.Group{{}, {}},
			Peers:    []report.Peer{{Handle: "ready"}, {Handle: "ready"}, {Handle: "none"}},
			Counters: ofInterface, Kernel: kernel, Recovery: recovery, Resolved: repairs,
		}, {
			Name: "ib1", Device: "soft", Port: 1, Time: now, Since: now, State: "waiting", Reason: "port", Detail: "port 1 is DOWN",
			Counters: report.Counters{}, Kernel: report.Counters{}, Recovery: &report.Recovery{},
		}},
		Devices: []report.Device{{
			Name: "soft", HCA: "soft", Kind: "software HCA", Underlay: "eth0", State: "waiting", Reason: "removed", Since: now, Notice: "a NAT", Opens: 2,
			Ports:    []report.Port{{Num: 1, PortAttr: hca.PortAttr{State: hca.PortActive, ActiveMTU: 2048}}},
			Counters: ofDevice, Recovery: recovery, Coordinator: &report.Coordinator{Members: []string{"a", "b"}},
		}},
	}
}

// gauges are the counters of docs/counters.md that can decrease.
var gauges = []string{"tx_outstanding", "rx_outstanding", "tx_queued", "neigh_kept", "guard_verbs_stuck", "guard_zombies", "wire_tx_trains_refused", "sa_outstanding", "sa_queued", "sa_groups", "sa_paths"}

// documented returns the counters of docs/counters.md, of interfaces and of devices, with the
// values 1, 2, 3 and so on.
func documented(t testing.TB) (ofInterface, ofDevice report.Counters) {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "## Counters of an interface")
	i, d, _ := strings.Cut(page, "## Counters of a software HCA")
	ofInterface, ofDevice = report.Counters{}, report.Counters{}
	for part, into := range map[string]report.Counters{i: ofInterface, d: ofDevice} {
		for n, row := range regexp.MustCompile("(?m)^\\| `([a-z_0-9*]+)` \\|").FindAllStringSubmatch(part, -1) {
			examples := map[string][]string{
				"tap_segments_*": {"tap_segments_1", "tap_segments_64_more"}, "tap_bytes_*": {"tap_bytes_0_63", "tap_bytes_32768_more"},
				"tap_wait_ns_*": {"tap_wait_ns_0_2047", "tap_wait_ns_2048_4095", "tap_wait_ns_8388608_more"},
			}[row[1]]
			if examples == nil {
				examples = []string{strings.ReplaceAll(row[1], "*", "loc_prot_err")}
			}
			for _, name := range examples {
				kind := hca.CountTotal
				switch {
				case slices.Contains(gauges, name):
					kind = hca.CountGauge
				case strings.Contains(name, "_drop_"), strings.Contains(name, "_wc_"), strings.HasSuffix(name, "_dropped"), strings.HasSuffix(name, "_drops"):
					kind = hca.CountDrop
				}
				into[name] = report.Count{Value: uint64(n + 1), Kind: kind}
			}
		}
	}
	if len(ofInterface) < 100 || len(ofDevice) < 60 {
		t.Fatalf("found %d and %d counters: does the expression still match?", len(ofInterface), len(ofDevice))
	}
	return ofInterface, ofDevice
}

// gather returns the metrics of a status by their names, and requires that they are consistent.
func gather(t *testing.T, s report.Status) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := newRegistry(func() report.Status { return s }).Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

// values returns the series of a metric: its labels, such as `ib0 up`, and values.
func values(f *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		out[strings.Join(labels, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue() + m.GetHistogram().GetSampleSum()
	}
	return out
}

// The names, units and texts of all metrics follow the conventions of Prometheus and OpenMetrics.
func TestPromlint(t *testing.T) {
	families := gather(t, sample(t))
	problems, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace+"_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	series := 0
	for name, f := range families {
		if strings.HasPrefix(name, namespace+"_") {
			series += len(f.GetMetric())
		}
	}
	t.Logf("%d metrics, %d series", len(families), series)
}

// Every counter of docs/counters.md is found in the metrics, once, with its value.
func TestEveryCounterIsReachable(t *testing.T) {
	s := sample(t)
	families := gather(t, s)
	find := func(of, name, counter string, want report.Count) {
		t.Helper()
		total := values(families["ipoibd_"+of+"_"+counter+"_total"])
		plain := values(families["ipoibd_"+of+"_"+counter])
		drops := values(families["ipoibd_"+of+"_drops_total"])
		driver := values(families["ipoibd_"+of+"_driver_counter"])
		var got []float64
		for _, in := range []map[string]float64{total, plain} {
			if v, ok := in[name]; ok {
				got = append(got, v)
			}
		}
		for _, in := range []map[string]float64{drops, driver} {
			if v, ok := in[name+" "+counter]; ok {
				got = append(got, v)
			}
		}
		for metric, prefix := range map[string]string{"by_bytes": tapBytes, "by_segments": tapSegments} {
			if rest, ok := strings.CutPrefix(counter, prefix); ok {
				got = append(got, values(families["ipoibd_interface_tap_frames_"+metric+"_total"])[name+" "+rest])
			}
		}
		if strings.HasPrefix(counter, tapWaits) || counter == tapWaited { // see TestWakeUpLatency
			return
		}
		if !slices.Equal(got, []float64{float64(want.Value)}) {
			t.Errorf("%s of the %s: found %v, want %d", counter, of, got, want.Value)
		}
	}
	for _, counters := range []report.Counters{s.Interfaces[0].Counters, s.Interfaces[0].Kernel} {
		for name, c := range counters {
			find("interface", "ib0", name, c)
		}
	}
	for name, c := range s.Devices[0].Counters {
		find("device", "soft", name, c)
	}
	var sum float64
	for _, v := range values(families["ipoibd_device_drops_total"]) {
		sum += v
	}
	if want := s.Devices[0].Counters.Drops(); sum != float64(want) {
		t.Errorf("the drops of the device add up to %v, want %d", sum, want)
	}
}

func TestWakeUpLatency(t *testing.T) {
	s := report.Status{Interfaces: []report.Interface{{Name: "ib0", Kernel: report.Counters{
		"tap_wait_ns_0_2047": {Value: 5}, "tap_wait_ns_2048_4095": {Value: 3}, "tap_wait_ns_8388608_more": {Value: 1}, "tap_waited_ns": {Value: 10_000_000},
	}}}}
	h := gather(t, s)["ipoibd_interface_tap_wait_seconds"].GetMetric()[0].GetHistogram()
	got := fmt.Sprint(h.GetSampleCount(), h.GetSampleSum())
	for _, b := range h.GetBucket() {
		got += fmt.Sprintf(" %g:%d", b.GetUpperBound(), b.GetCumulativeCount())
	}
	if want := "9 0.01 2.047e-06:5 4.095e-06:8"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Metrics that are not counters: each series and its value.
func TestStateOfTheDaemon(t *testing.T) {
	families := gather(t, sample(t))
	for name, want := range map[string]map[string]float64{
		"build_info":                            {"0.9.0 (539e721)": 1},
		"interface_info":                        {"soft ib0 0xffff 1": 1, "soft ib1  1": 1},
		"interface_ready":                       {"ib0": 1, "ib1": 0},
		"interface_carrier":                     {"ib0": 1, "ib1": 0},
		"interface_reason":                      {"ib1 port": 1},
		"interface_state_timestamp_seconds":     {"ib0": 1e9 - 60, "ib1": 1e9},
		"interface_report_age_seconds":          {"ib0": 1, "ib1": 0},
		"interface_mtu_bytes":                   {"ib0": 1444, "ib1": 0},
		"interface_groups":                      {"ib0": 2, "ib1": 0},
		"interface_ring_slots":                  {"ib0 tx": 256, "ib0 rx": 512, "ib1 tx": 0, "ib1 rx": 0},
		"interface_recovery_active":             {"ib0": 1, "ib1": 0},
		"interface_recovery_outage_seconds":     {"ib0": 1.5, "ib1": 0},
		"interface_recoveries_total":            {"ib0": 3, "ib1": 0},
		"interface_outage_seconds_total":        {"ib0": 90, "ib1": 0},
		"interface_recovery_found_in_rts_total": {"ib0": 6, "ib1": 0},
		"interface_recovery_absorbed_total":     {"ib0": 7, "ib1": 0},
		"interface_recovery_stale_total":        {"ib0": 8, "ib1": 0},
		"interface_resolution_seconds":          {"ib0": 3602.02, "ib1": 0},
		"device_info":                           {"soft soft software HCA eth0": 1},
		"device_reason":                         {"soft removed": 1},
		"device_state_timestamp_seconds":        {"soft": 1e9},
		"device_opens_total":                    {"soft": 2},
		"device_notice":                         {"soft": 1},
		"device_port_active":                    {"soft 1": 1},
		"device_port_mtu_bytes":                 {"soft 1": 2048},
		"device_sharers":                        {"soft": 2},
		"device_recoveries_total":               {"soft": 3},
		"device_recovery_outage_seconds":        {"soft": 1.5},
	} {
		if got := values(families["ipoibd_"+name]); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string][]string{ // those that are not 0
		"interface_recovery_duration_seconds": {"ib0 reset_qp"},
		"interface_state":                     {"ib0 up", "ib1 waiting"},
		"interface_peers":                     {"none ib0", "ready ib0"},
		"device_state":                        {"soft waiting"},
		"interface_recovery_rungs_total":      {"ib0 reset_qp"},
		"interface_recovery_reasons_total":    {"ib0 qp_error"},
	} {
		all := values(families["ipoibd_"+name])
		got := maps.Clone(all)
		maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) || len(all) <= len(want)+2 {
			t.Errorf("%s: %v of %d, want %v and series with 0", name, keys, len(all), want)
		}
	}
	for _, name := range []string{"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total", "process_start_time_seconds", "go_goroutines"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

// docs/monitoring.md lists all metrics except those of counters, with their types and labels. It leaves out the label
// that each metric of a device or an interface has, and writes * where both have the same metric.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(ipoibd_[a-z_*]+)` \\| ([a-z]+) \\|([^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		for _, scope := range []string{"device", "interface"} {
			listed[strings.Replace(row[1], "*", scope, 1)] = row[2] + strings.ReplaceAll(row[3], "`", "")
		}
	}
	s := sample(t)
	counts := map[string]bool{}
	for of, all := range map[string][]report.Counters{"interface": {s.Interfaces[0].Counters, s.Interfaces[0].Kernel}, "device": {s.Devices[0].Counters}} {
		for _, counters := range all {
			for name := range counters {
				counts["ipoibd_"+of+"_"+name], counts["ipoibd_"+of+"_"+name+"_total"] = true, true
			}
		}
	}
	for name, f := range gather(t, s) {
		if !strings.HasPrefix(name, "ipoibd_") || counts[name] {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			if !strings.HasPrefix(name, "ipoibd_"+l.GetName()+"_") {
				labels = append(labels, l.GetName())
			}
		}
		kind := strings.ToLower(strings.Replace(f.GetType().String(), "UNTYPED", "unknown", 1))
		want := strings.TrimSpace(kind + " " + strings.Join(labels, ", "))
		if listed[name] != want {
			t.Errorf("docs/monitoring.md: %s: listed as %q, is %q: %s", name, listed[name], want, f.GetHelp())
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("docs/monitoring.md lists %s, which does not exist", name)
	}
}

// The states are those of docs/status.schema.json.
func TestEnumerations(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/status.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type property struct {
		Enum       []string
		Items      *struct{ Properties map[string]property }
		Properties map[string]property
	}
	var schema struct {
		Defs map[string]property `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	of := schema.Defs["interface"].Properties
	notice := schema.Defs["notices"].Items.Properties
	for name, enum := range map[string][2][]string{
		"interface": {report.InterfaceStates, of["state"].Enum},
		"device":    {report.DeviceStates, schema.Defs["device"].Properties["state"].Enum},
		"notice":    {diagnose.NoticeKinds(), notice["kind"].Enum},
		"handle":    {report.HandleStates, of["peers"].Items.Properties["handle"].Enum},
	} {
		if !slices.Equal(enum[0], enum[1]) {
			t.Errorf("%s: %v, the schema has %v", name, enum[0], enum[1])
		}
	}
}

// A scrape: its cost bounds maxRate.
func BenchmarkScrape(b *testing.B) {
	s := sample(b)
	r := newRegistry(func() report.Status { return s })
	for b.Loop() {
		if _, err := r.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
