package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link/kernel/capsule/capsuletest"
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
		r.eventually("the new process has posted receives, and opened the device", func() bool {
			last, err = control.GetStatus(t.Context(), cfg.Control)
			must(t, err)
			return last.Interfaces[0].Counters["rx_posts"].Value > was.Counters["rx_posts"].Value && last.Devices[0].Opens > before.Devices[0].Opens
		})
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
	release, err := d.current.TryHold()
	must(t, err)
	if err := d.handOver(nil); !errors.Is(err, control.ErrUnavailable) {
		t.Errorf("a hand-over during a reload: %v", err)
	}
	release()
	d.end(errors.New("stopping"))
	if err := d.handOver(nil); !errors.Is(err, control.ErrUnavailable) {
		t.Errorf("a hand-over during a stop: %v", err)
	}
}

// The configuration that is handed over is that of the giver, whatever it contains.
func TestConfigurationIsHandedOver(t *testing.T) {
	cfg := configure(t, "ib0", "ib1")
	index := 3
	cfg.Devices[0].Peers, cfg.Devices[0].Grace = []string{"192.0.2.7"}, 7*time.Second
	cfg.Interfaces[0].GIDIndex, cfg.Interfaces[0].Addresses = &index, []string{"10.0.0.1/24"}
	cfg.Interfaces[1].PKey = 0x8001
	cfg.Added = map[string]config.Addition{"ib1": {Request: `{"name":"ib1"}`, Existing: true}}
	must(t, cfg.Validate())
	text, err := json.Marshal(handed{Config: *cfg})
	must(t, err)
	var h handed
	must(t, json.Unmarshal(text, &h))
	h.Config.Sandbox = cfg.Sandbox // each process has its own
	must(t, h.check(cfg))
	if !reflect.DeepEqual(h.Config, *cfg) {
		t.Errorf("%+v\nwant\n%+v", h.Config, *cfg)
	}
}

// A configuration that is not valid, or is for another control socket, is refused.
func TestHandedIsChecked(t *testing.T) {
	cfg := configure(t, "ib0")
	must(t, (&handed{Config: *cfg}).check(cfg))
	other := *cfg
	other.Control = "/elsewhere"
	for name, c := range map[string]config.Config{
		"another socket":       other,
		"a bad configuration":  {Control: cfg.Control},
		"an impossible P_Key":  {Control: cfg.Control, Devices: cfg.Devices, Interfaces: []config.Interface{{Name: "ib0", Device: "soft", PKey: hca.PKey(0)}}},
		"a name that is wrong": {Control: cfg.Control, Devices: cfg.Devices, Interfaces: []config.Interface{{Name: "../ib0", Device: "soft", PKey: 0xffff}}},
	} {
		if err := (&handed{Config: c}).check(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The format of what is handed over outlives versions.
func TestFormat(t *testing.T) { capsuletest.Check(t, "daemon", handed{}) }

// Fields that another version does not send have their defaults, not zero.
func TestHandedByAnotherVersion(t *testing.T) {
	cfg := configure(t, "ib0")
	text, err := json.Marshal(handed{Config: *cfg})
	must(t, err)
	var all map[string]any
	must(t, json.Unmarshal(text, &all))
	all["newer"] = 1
	c := all["config"].(map[string]any)
	f, dev := c["interfaces"].([]any)[0].(map[string]any), c["devices"].([]any)[0].(map[string]any)
	f["newer"], dev["newer"] = []int{1}, map[string]any{"a": 1}
	delete(f, "ebpf")
	delete(dev, "give_up_after")
	delete(dev, "lanes")
	delete(all, "left")
	text, err = json.Marshal(all)
	must(t, err)
	var h handed
	must(t, json.Unmarshal(text, &h))
	h.Config.Sandbox = cfg.Sandbox
	must(t, h.check(cfg))
	if !reflect.DeepEqual(h.Config, *cfg) {
		t.Errorf("%+v\nwant\n%+v", h.Config, *cfg)
	}
	for _, bad := range []string{"", "[]", `{"config":{"devices":[1]}}`} {
		if err := json.Unmarshal([]byte(bad), new(handed)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// succeed replaces the daemon by one that takes over from it.
func (r *running) succeed(opts Options) *running {
	r.t.Helper()
	opts.TakeOver = true
	next := start(r.t, r.cfg, opts)
	if err := r.wait(); err != nil {
		r.t.Fatalf("the former daemon: %v", err)
	}
	return next
}

// device returns the state of a device and of its recovery.
func (r *running) device(name string) (d report.Device) {
	r.t.Helper()
	s, err := control.GetStatus(r.t.Context(), r.cfg.Control)
	must(r.t, err)
	for _, d := range s.Devices {
		if d.Name == name {
			return d
		}
	}
	r.t.Fatalf("there is no device %s", name)
	return d
}

// Devices that wait, are given up or suspended are handed over as they are, with their interfaces (R26): the
// wait is not prolonged, the recovery is the same, and the others go on working.
func TestR26TakeOverOfWhatWaits(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const wait = 4 * time.Second
	underlay(t, "under0", 1)
	underlay(t, "under1", 2)
	cfg := configure(t, "ib0", "ib1")
	cfg.Devices[0].Name = "d0"
	cfg.Devices = append(cfg.Devices, cfg.Devices[0])
	cfg.Devices[1].Name, cfg.Devices[1].Underlay, cfg.Devices[1].GiveUpAfter = "d1", "under1", wait
	for i := range cfg.Interfaces {
		cfg.Interfaces[i].Device, cfg.Interfaces[i].Up = cfg.Devices[i].Name, true
	}
	must(t, cfg.Validate())
	opts := options()
	opts.AllowFaults = true
	r := start(t, cfg, opts)
	r.waitState(0, "up")
	r.waitState(1, "up")
	must(t, control.Post(t.Context(), cfg.Control, &control.FaultRequest{Device: "d1", Kind: "unplug"}))
	is := func(name, state string) func() bool {
		return func() bool { return r.device(name).Recovery.State == state }
	}
	r.eventually("d1 waits", is("d1", "waiting"))
	r.eventually("ib1 has no carrier", func() bool { return !r.iface(1).Carrier })
	for _, state := range []string{"waiting", "given_up"} {
		before, one := r.device("d1").Recovery, r.iface(1)
		for range 3 {
			r = r.succeed(opts)
		}
		after, other := r.device("d1").Recovery, r.iface(1)
		if after.State == "given_up" && state == "waiting" && time.Now().After(before.GivesUp) {
			t.Logf("the hand-overs took longer than d1 waits")
			continue
		}
		if after.State != state || after.Since.IsZero() || !after.Since.Equal(before.Since) || len(after.History) != len(before.History) || after.GivesUp.Sub(before.GivesUp).Abs() > time.Second {
			t.Errorf("d1 %s\nwas %+v\nis %+v", state, before, after)
		}
		if one.Recovery.State != other.Recovery.State || !one.Recovery.Since.Equal(other.Recovery.Since) {
			t.Errorf("ib1 %s\nwas %+v\nis %+v", state, one.Recovery, other.Recovery)
		}
		if s := r.waitState(0, "up"); !s.Carrier {
			t.Errorf("ib0 while d1 is %s: %+v", state, s)
		}
		r.eventually("d1 is given up", is("d1", "given_up"))
	}
	must(t, control.Post(t.Context(), cfg.Control, &control.FaultRequest{Device: "d1", Kind: "replug"}))
	must(t, control.Post(t.Context(), cfg.Control, &control.RecoverRequest{Device: "d1"}))
	r.waitState(1, "up")

	must(t, control.Post(t.Context(), cfg.Control, &control.SuspendRequest{}))
	r.eventually("d0 is suspended", is("d0", "suspended"))
	r = r.succeed(opts)
	if s := r.device("d0"); s.Recovery.State != "suspended" {
		t.Errorf("after a hand-over, d0 is %+v", s)
	}
	must(t, control.Post(t.Context(), cfg.Control, &control.ResumeRequest{}))
	r.waitState(0, "up")
	r.waitState(1, "up")
	r.stop()
}

var tryAgain = regexp.MustCompile(`try again in (\d+)s`)

// After a hand-over for which traffic has stopped in vain there is a pause before the next one, and the
// refusal says for how long.
func TestFailedHandOverIsFollowedByAPause(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	underlay(t, "under0", 1)
	cfg := configure(t, "ib0")
	cfg.Interfaces[0].Up = true
	r := start(t, cfg, options())
	r.waitState(0, "up")
	conn, err := control.AskHandOver(t.Context(), cfg.Control)
	must(t, err)
	taker, err := handover.Take(t.Context(), conn)
	must(t, err)
	taker.Capsule.Close()
	failed := time.Now()
	taker.Fail()
	r.waitState(0, "up")
	opts := options()
	opts.TakeOver = true
	r.eventually("the hand-over that failed has ended", func() bool { // traffic goes on before
		err = Run(t.Context(), cfg, opts)
		return err == nil || !strings.Contains(err.Error(), "another hand-over is under way")
	})
	m := tryAgain.FindStringSubmatch(fmt.Sprint(err))
	if m == nil || !strings.Contains(err.Error(), "stop the running daemon") {
		t.Fatalf("a hand-over right after one that failed: %v", err)
	}
	rest, err := time.ParseDuration(m[1] + "s") // rounded
	must(t, err)
	if least := 9*time.Second - time.Since(failed).Truncate(time.Second); rest > 10*time.Second || rest < least {
		t.Errorf("the pause is %v, want %v to 10s", rest, least)
	}
	r.waitState(0, "up")
	r.stop()
}
