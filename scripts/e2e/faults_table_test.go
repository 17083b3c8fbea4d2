package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// legend explains the columns of the table.
const legend = `
detect   from the fault to the daemon's notice of it
repair   from there to health, by the daemon's account; from its end to the first
         answer of a fault that lasts until it is mended (m)
goal     for the median of that
outage   without service, by the daemon's account
silence  the longest wait of a ping at 1 ms from the other host
carrier  changes of ib0's carrier
TCP      what became of the connection, and when it moved again after the ping
drops    frames, by reason, in all injections`

// table shows the rows, times as median/worst.
func table(rows []row) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nfault\tn\trung\tdetect\trepair\tgoal\toutage\tsilence\tagree\tcarrier\tTCP\tdrops")
	for _, r := range rows {
		if len(r.samples) > 0 {
			fmt.Fprintln(w, strings.Join(r.cells(), "\t"))
		}
	}
	_ = w.Flush() // writing to a strings.Builder cannot fail
	return out.String() + legend
}

func (r row) cells() []string {
	of := func(d func(sample) time.Duration) string { return figures(r.all(d)) }
	repair := of(func(s sample) time.Duration { return s.repair })
	if r.fault.mend != nil {
		repair += " m"
	}
	return []string{
		r.fault.name, fmt.Sprint(len(r.samples)), r.rungs(),
		of(func(s sample) time.Duration { return s.detection }), repair, r.goal(),
		of(func(s sample) time.Duration { return s.outage }),
		of(func(s sample) time.Duration { return s.silence }),
		r.agreement(), r.carrier(), r.tcp(), r.drops(),
	}
}

func (r row) all(of func(sample) time.Duration) (all []time.Duration) {
	for _, s := range r.samples {
		all = append(all, of(s))
	}
	return all
}

// rungs returns the rungs reached, which should be only one.
func (r row) rungs() string {
	reached := map[string]bool{}
	for _, s := range r.samples {
		reached[cmp.Or(s.rung, "-")] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(reached)), ",")
}

// goal reports whether the goal is met. Faults that include a wait have none.
func (r row) goal() string {
	goal := goals[r.fault.rung]
	switch {
	case goal == 0 || r.fault.waits:
		return "-"
	case median(r.all(func(s sample) time.Duration { return s.repair })) <= goal:
		return fmt.Sprintf("%v met", goal)
	default:
		return fmt.Sprintf("%v MISSED", goal)
	}
}

func (r row) agreement() string {
	agree := 0
	for _, s := range r.samples {
		if s.outage == 0 {
			return "-"
		}
		if s.agrees(r.fault) {
			agree++
		}
	}
	return fmt.Sprintf("%d/%d", agree, len(r.samples))
}

func (r row) carrier() string {
	changes := 0
	for _, s := range r.samples {
		changes += s.carrier
	}
	return fmt.Sprint(changes)
}

func (r row) tcp() string {
	moved := figures(r.all(func(s sample) time.Duration { return s.tcp }))
	if n := len(r.lost); n > 0 {
		return fmt.Sprintf("LOST %d, %s", n, moved)
	}
	return "lived, " + moved
}

func (r row) drops() string {
	sum := map[string]uint64{}
	for _, s := range r.samples {
		for reason, n := range s.drops {
			sum[reason] += n
		}
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(sum)) {
		list = append(list, fmt.Sprintf("%s=%d", reason, sum[reason]))
	}
	return strings.Join(list, " ")
}

// String returns the sample as a progress line.
func (s sample) String() string {
	return fmt.Sprintf("%-15s detected %s, repaired %s; outage %s, silence %s; TCP +%s",
		cmp.Or(s.rung, "-"), short(s.detection), short(s.repair), short(s.outage), short(s.silence), short(s.tcp))
}

// figures returns median and worst, or - if nothing was measured.
func figures(all []time.Duration) string {
	if worst := slices.Max(all); worst > 0 {
		return short(median(all)) + "/" + short(worst)
	}
	return "-"
}

// median returns the middle value, or the lower of two middle values.
func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)/2]
}

// short returns a duration in milliseconds with three digits, or in seconds.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

func TestTable(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	got := row{
		fault: fault{name: "x", rung: resetQP},
		samples: []sample{
			{rung: resetQP, detection: ms(1), repair: ms(9), outage: ms(10), silence: ms(500), tcp: ms(7), drops: map[string]uint64{"b": 1}},
			{rung: resetQP, detection: ms(3), repair: ms(5), outage: ms(8), silence: ms(9), tcp: ms(7), drops: map[string]uint64{"a": 2, "b": 2}},
			{rung: resetQP, detection: ms(2), repair: ms(4), outage: ms(6), silence: ms(8), tcp: ms(7), carrier: 2},
		},
	}.cells()
	want := []string{"x", "3", "reset_qp", "2ms/3ms", "5ms/9ms", "5ms met", "8ms/10ms", "9ms/500ms", "2/3", "2", "lived, 7ms/7ms", "a=2 b=3"}
	if !slices.Equal(got, want) {
		t.Errorf("cells %q, want %q", got, want)
	}
}
