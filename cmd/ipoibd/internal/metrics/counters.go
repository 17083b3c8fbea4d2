package metrics

import (
	"math"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
	"ipoibd/hca"
)

// scope is the metrics of an interface or of a device whose names come from elsewhere.
type scope struct {
	name     string                   // and label
	meaning  func(name string) string // of a counter; "": it is a driver's
	drops    metric
	driver   metric
	recovery recoveryMetrics
}

func newScope(name string, meaning func(string) string) *scope {
	driver := gauge(name+"_driver_counter", "Counters of a driver, whose kinds are not known.", name, "name")
	driver.kind = prometheus.UntypedValue
	return &scope{
		name: name, meaning: meaning, driver: driver, recovery: newRecoveryMetrics(name),
		drops: counter(name+"_drops", "Lost frames or datagrams, by the counter of docs/counters.md.", name, "reason"),
	}
}

var (
	ofInterface = newScope("interface", docs.InterfaceCounter)
	ofDevice    = newScope("device", docs.DeviceCounter)
)

// Distributions at the TAP, whose counters are named after ranges of values.
const (
	tapBytes    = "tap_bytes_"
	tapSegments = "tap_segments_"
	tapWaits    = "tap_wait_ns_"
	tapWaited   = "tap_waited_ns" // the sum of the waits
)

var (
	byBytes = counter("interface_tap_frames_by_bytes",
		"Frames that the eBPF filter passed, by their length in bytes.", "interface", "range")
	bySegments = counter("interface_tap_frames_by_segments",
		"Frames that the eBPF filter passed, by the number of segments that each is cut into.", "interface", "range")
	waits = prometheus.NewDesc(namespace+"_interface_tap_wait_seconds",
		"Wake-up latency: from the transmission of a frame for which the daemon waited until the daemon had it; "+
			"with one lane only.", []string{"interface"}, nil)
)

// addCounters adds the counters of an interface or a device. The kernel's drops are metrics of
// their own, so that the sum over the reasons is what the daemon itself has lost.
func (s sink) addCounters(of *scope, name string, counters report.Counters) {
	var waited []bucket
	for c, n := range counters {
		value, meaning := float64(n.Value), of.meaning(c)
		switch {
		case strings.HasPrefix(c, tapBytes):
			s.add(byBytes, value, name, strings.TrimPrefix(c, tapBytes))
		case strings.HasPrefix(c, tapSegments):
			s.add(bySegments, value, name, strings.TrimPrefix(c, tapSegments))
		case strings.HasPrefix(c, tapWaits):
			waited = append(waited, bucket{upTo(c), n.Value})
		case c == tapWaited: // with the buckets
		case n.Kind == hca.CountUnknown, meaning == "":
			s.add(of.driver, value, name, c)
		case n.Kind == hca.CountDrop && !strings.HasPrefix(c, "kernel_"):
			s.add(of.drops, value, name, c)
		case n.Kind == hca.CountGauge:
			s.add(gauge(of.name+"_"+c, help(meaning), of.name), value, name)
		default:
			s.add(counter(of.name+"_"+c, help(meaning), of.name), value, name)
		}
	}
	if waited != nil {
		s.addWaits(name, waited, counters[tapWaited].Value)
	}
}

// help makes a sentence of a row of docs/counters.md.
func help(meaning string) string { return strings.ToUpper(meaning[:1]) + meaning[1:] + "." }

// bucket counts values up to a bound in nanoseconds, but not the values of lower buckets.
type bucket struct {
	upTo  float64
	count uint64
}

// upTo returns the upper bound of a range, such as tap_wait_ns_2048_4095.
func upTo(name string) float64 {
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, '_')+1:], 10, 64)
	if err != nil { // 8388608_more
		return math.Inf(1)
	}
	return float64(n)
}

func (s sink) addWaits(name string, buckets []bucket, sum uint64) {
	const nanoseconds = 1e9
	var count uint64
	upTo := make(map[float64]uint64, len(buckets))
	for _, b := range buckets {
		count += b.count
		if math.IsInf(b.upTo, 1) {
			continue
		}
		for _, lower := range buckets {
			if lower.upTo <= b.upTo {
				upTo[b.upTo/nanoseconds] += lower.count
			}
		}
	}
	s <- prometheus.MustNewConstHistogram(waits, count, float64(sum)/nanoseconds, upTo, name)
}
