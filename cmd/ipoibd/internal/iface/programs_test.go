package iface

import (
	"errors"
	"fmt"
	"testing"

	"ipoibd/bpf"
	"ipoibd/docs"
	"ipoibd/hca"
	"ipoibd/link"
)

// A histogram is shown by counters that are named after the values, and contain each
// value once.
func TestHistogramsAsCounters(t *testing.T) {
	all := make(bpf.Histogram, 8)
	for n := range all {
		all[n] = 1 << n
	}
	for _, c := range []struct {
		first, last int
		want        string
	}{
		{1, 4, "[s_1=3 s_2_3=4 s_4_7=8 s_8_more=240]"}, // a frame of 0 segments is one of 1
		{3, 5, "[s_0_7=15 s_8_15=16 s_16_more=224]"},
		{6, 7, "[s_0_63=127 s_64_more=128]"},
	} {
		var got []string
		for _, n := range appendHistogram(nil, "s_", all, c.first, c.last) {
			got = append(got, fmt.Sprintf("%s=%d", n.Name, n.Value))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%d to %d: %v, want %s", c.first, c.last, got, c.want)
		}
	}
}

// fakePrograms stands for the TAP of the programs.
type fakePrograms struct {
	TAP
	got            link.Programs
	onWait, onWake func()
	err            error
}

func (p *fakePrograms) SetPrograms(got link.Programs) error {
	p.got = got
	return p.err
}

func (p *fakePrograms) ObserveWaits(_ int, onWait, onWake func()) {
	p.onWait, p.onWake = onWait, onWake
}

func (*fakePrograms) Queues() []link.Queue { return make([]link.Queue, 1) }

// Both programs are attached. Their counters have meanings, kinds, and names of their own, and
// end with them. If the TAP refuses the programs, none stays.
func TestProgramsOfAnInterface(t *testing.T) {
	fds, err := bpf.Load(1)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := bpf.Open(fds)
	if err != nil {
		t.Fatal(err)
	}
	var p programs
	tap := fakePrograms{got: link.NoPrograms}
	if err := p.load(loaded, &tap, 1); err != nil {
		t.Fatal(err)
	}
	p.observe(&tap, 1, func(int) {})
	if tap.got.Filter < 0 || tap.got.Steering < 0 || tap.onWait == nil || tap.onWake == nil {
		t.Errorf("attached %+v", tap.got)
	}
	if why := p.lacking(); why != "" {
		t.Errorf("lacking: %s", why)
	}
	list, dropped := p.counters()
	names := map[string]bool{}
	for _, c := range list {
		if names[c.Name] || c.Value != 0 || c.Kind == hca.CountUnknown || docs.InterfaceCounter("tap_"+c.Name) == "" {
			t.Errorf("%+v: a second one, not zero, or without kind or meaning", c)
		}
		names[c.Name] = true
	}
	if len(names) != 1+6+7+11+14+1 || dropped != 0 {
		t.Errorf("%d counters, %d dropped", len(names), dropped)
	}
	for range 2 {
		p.close()
	}
	if list, _ := p.counters(); list != nil {
		t.Errorf("after close: %v", list)
	}
	tap.err = link.ErrGone
	for range 2 { // the filter is given back
		if err := p.load(loaded, &tap, 1); !errors.Is(err, link.ErrGone) || p.filter != nil {
			t.Errorf("load = %v; %v", err, p.filter)
		}
	}
	if err := p.load(nil, &tap, 1); !errors.Is(err, bpf.ErrNotLoaded) || p.lacking() != err.Error() {
		t.Errorf("load = %v; lacking: %s", err, p.lacking())
	}
}
