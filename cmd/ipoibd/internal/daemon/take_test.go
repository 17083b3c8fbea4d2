package daemon

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link/linktest/nstest"
)

// Several daemons in one process take over from each other, with two interfaces, one of which is down.
// What they report is continuous, and ib0 keeps its carrier.
func TestTakeOver(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0", "ib1")
	cfg.Interfaces[0].Up, cfg.Interfaces[1].PKey = true, 0x8001
	must(t, cfg.Validate())
	r := start(t, cfg, options())
	first := r.waitState(0, "up")
	r.waitState(1, "down")
	var last *report.Status
	for range 3 {
		before, err := control.GetStatus(t.Context(), cfg.Control)
		must(t, err)
		opts := options()
		opts.TakeOver = true
		next := start(t, cfg, opts)
		if err := <-r.ended; err != nil {
			t.Fatalf("the former daemon: %v", err)
		}
		r = next
		last, err = control.GetStatus(t.Context(), cfg.Control)
		must(t, err)
		is, was := last.Interfaces[0], before.Interfaces[0]
		if is.State != "up" || !is.Carrier || is.QP.QPN != first.QP.QPN || is.MAC != first.MAC {
			t.Fatalf("after a hand-over: %+v", is)
		}
		r.waitState(1, "down")
		for name, n := range was.Counters {
			if !strings.HasSuffix(name, "outstanding") && is.Counters[name].Value < n.Value {
				t.Errorf("%s has decreased from %d to %d", name, n.Value, is.Counters[name].Value)
			}
		}
		if is.Counters["rx_posts"].Value <= was.Counters["rx_posts"].Value || last.Devices[0].Opens <= before.Devices[0].Opens {
			t.Errorf("the new process has posted no receives, or not opened the device")
		}
	}
	if last.Devices[0].Opens != 4 {
		t.Errorf("the device was opened %d times, want 4", last.Devices[0].Opens)
	}
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Errorf("the last daemon: %v", err)
	}
	if find(t, "ib0").Attrs().OperState.String() == "up" {
		t.Error("ib0 has carrier after the last daemon has ended")
	}
}

// A daemon whose configuration is changing, or that is stopping, hands nothing over. A taker without a
// giver starts as usual.
func TestTakeOverIsRefused(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0")
	cfg.Interfaces[0].Up = true
	opts := options()
	opts.TakeOver = true
	r := start(t, cfg, opts) // there is nothing to take over
	r.waitState(0, "up")
	d := newDaemon(t.Context(), options())
	defer d.end(nil)
	d.changing <- struct{}{}
	if err := d.HandOver(nil); !errors.Is(err, control.ErrUnavailable) {
		t.Errorf("a hand-over during a reload: %v", err)
	}
	<-d.changing
	d.end(errors.New("stopping"))
	if err := d.HandOver(nil); !errors.Is(err, control.ErrUnavailable) {
		t.Errorf("a hand-over during a stop: %v", err)
	}
}

// The configuration in an estate is that of the giver, whatever it contains.
func TestEstateKeepsTheConfiguration(t *testing.T) {
	cfg := configure(t, "ib0", "ib1")
	index := 3
	cfg.Devices[0].Peers, cfg.Devices[0].Grace = []string{"192.0.2.7"}, 7*time.Second
	cfg.Interfaces[0].GIDIndex, cfg.Interfaces[0].Addresses = &index, []string{"10.0.0.1/24"}
	cfg.Interfaces[1].PKey, cfg.Interfaces[1].Request = 0x8001, `{"name":"ib1"}`
	must(t, cfg.Validate())
	text, err := json.Marshal(estate{Config: *cfg})
	must(t, err)
	var e estate
	must(t, json.Unmarshal(text, &e))
	if !reflect.DeepEqual(e.Config, *cfg) {
		t.Errorf("%+v\nwant\n%+v", e.Config, *cfg)
	}
}

// A state with other numbers of devices or descriptors than its configuration needs is refused.
func TestEstateIsChecked(t *testing.T) {
	cfg := configure(t, "ib0")
	good := estate{Config: *cfg, Devices: make([]estateDevice, 1), Interfaces: make([]estateInterface, 1)}
	must(t, good.check(cfg))
	other := *cfg
	other.Control = "/elsewhere"
	for name, e := range map[string]estate{
		"no device":            {Config: *cfg, Interfaces: good.Interfaces},
		"two interfaces":       {Config: *cfg, Devices: good.Devices, Interfaces: make([]estateInterface, 2)},
		"another socket":       {Config: other, Devices: good.Devices, Interfaces: good.Interfaces},
		"a bad configuration":  {Config: config.Config{Control: cfg.Control}},
		"an impossible P_Key":  {Config: config.Config{Control: cfg.Control, Devices: cfg.Devices, Interfaces: []config.Interface{{Name: "ib0", Device: "soft", PKey: hca.PKey(0)}}}},
		"a name that is wrong": {Config: config.Config{Control: cfg.Control, Devices: cfg.Devices, Interfaces: []config.Interface{{Name: "../ib0", Device: "soft", PKey: 0xffff}}}},
	} {
		if err := e.check(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	p := portions{[]int{4, 5}}
	if _, err := p.next(-1); err == nil {
		t.Error("-1 descriptors")
	}
	if fds, err := p.next(2); err != nil || len(fds) != 2 {
		t.Errorf("%v, %v", fds, err)
	}
	if _, err := p.next(1); err == nil {
		t.Error("a descriptor that does not exist")
	}
}
