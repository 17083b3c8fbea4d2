package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// recoveryMetrics are the metrics of the ladder of an interface or a device.
type recoveryMetrics struct {
	active, outage                     metric // now
	recovered, outages, rungs, reasons metric
	foundRTS, absorbed, stale          metric
	repair                             *prometheus.Desc
}

func newRecoveryMetrics(scope string) recoveryMetrics {
	return recoveryMetrics{
		active: gauge(scope+"_recovery_active", "Whether a recovery, or a suspension, is under way.", scope),
		outage: gauge(scope+"_recovery_outage_seconds",
			"How long service has been missing in the current recovery or suspension; 0 without one.", scope),
		recovered: counter(scope+"_recoveries", "Recoveries that succeeded; a suspension does not count.", scope),
		outages:   counter(scope+"_outage_seconds", "Time without service in all recoveries that have ended.", scope),
		rungs:     counter(scope+"_recovery_rungs", "Times a rung of recovery was entered.", scope, "rung"),
		reasons: counter(scope+"_recovery_reasons",
			"Times a rung of recovery was entered, or skipped, for a reason.", scope, "reason"),
		foundRTS: counter(scope+"_recovery_found_in_rts", "Suspected queue pairs that were found in RTS.", scope),
		absorbed: counter(scope+"_recovery_absorbed", "Faults that needed no further step.", scope),
		stale:    counter(scope+"_recovery_stale", "Events of an earlier generation or operation.", scope),
		repair: prometheus.NewDesc(namespace+"_"+scope+"_recovery_duration_seconds",
			"Duration of recoveries that succeeded, from detection, by the highest rung.",
			[]string{scope, "rung"}, nil),
	}
}

// addRecovery adds a series for each rung and each reason, even if it is 0: the first increase
// of a series that begins with 1 is invisible to rate() and increase().
func (s sink) addRecovery(of *scope, name string, r *report.Recovery) {
	if r == nil {
		return
	}
	m := &of.recovery
	s.addBool(m.active, !r.Since.IsZero(), name)
	s.add(m.outage, time.Duration(r.Outage).Seconds(), name)
	s.add(m.recovered, float64(r.Recovered), name)
	s.add(m.outages, time.Duration(r.OutageTotal).Seconds(), name)
	s.add(m.foundRTS, float64(r.FoundRTS), name)
	s.add(m.absorbed, float64(r.Absorbed), name)
	s.add(m.stale, float64(r.Stale), name)
	for rung := qprecovery.Rung(1); rung < qprecovery.NumRung; rung++ {
		s.add(m.rungs, float64(r.Rungs[rung.String()]), name, rung.String())
		if rung == qprecovery.RungSuspend {
			continue
		}
		repairs, ok := r.Repairs[rung.String()]
		if !ok {
			repairs = report.NewHistogram(new(hca.Durations))
		}
		s.addHistogram(m.repair, repairs, name, rung.String())
	}
	for reason := qprecovery.Reason(1); reason < qprecovery.NumReason; reason++ {
		s.add(m.reasons, float64(r.Reasons[reason.String()]), name, reason.String())
	}
}
