package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "ipoibd"

// metric is one metric, which has a series for each combination of its labels.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(namespace+"_"+name, help, labels, nil), prometheus.GaugeValue}
}

// counter appends _total to the name.
func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(namespace+"_"+name+"_total", help, labels, nil), prometheus.CounterValue}
}

// sink takes the series of one scrape.
type sink chan<- prometheus.Metric

func (s sink) add(m metric, value float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

// addBool adds 1 or 0.
func (s sink) addBool(m metric, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	s.add(m, value, labels...)
}

// addOneOf adds a series with the value 1 for the current one of a list of states, and one with
// the value 0 for each of the others. The state is the last label.
func (s sink) addOneOf(m metric, states []string, current string, labels ...string) {
	for _, state := range states {
		s.addBool(m, state == current, append(labels[:len(labels):len(labels)], state)...)
	}
}
