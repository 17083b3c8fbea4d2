package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link"
)

// Each command gives the daemon one order and prints the effect.
func TestR29OrdersSayWhatTheyDid(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	for _, c := range []struct{ args, order, out string }{
		{"reset qp", "reset ib0 reset_qp", "resetting the queue pair of ib0"},
		{"reset cq --interface ib0", "reset ib0 rebuild_cq", "rebuilding the completion queues and the queue pair of ib0"},
		{"reset device", "reset soft", "resetting device soft"},
		{"reset device --device soft", "reset soft", "resetting device soft"},
		{"recover", "recover soft", "retrying device soft"},
		{"suspend", "suspend ", "all devices are closed"},
		{"resume", "resume ", "opening all devices"},
		{"fault unplug", "fault soft {Kind:unplug After:0 Count:0 Verb:}", "fault unplug armed on device soft"},
		{"fault clear", "fault soft {Kind:clear After:0 Count:0 Verb:}", "pending faults of device soft cancelled"},
		{
			"fault verb_hangs --after 3 --count 2 --verb query_qp --device soft",
			"fault soft {Kind:verb_hangs After:3 Count:2 Verb:query_qp}", "fault verb_hangs armed on device soft",
		},
	} {
		out, _, err := ipoibd(t, append(strings.Fields(c.args), "--control", path)...)
		if err != nil || out != c.out+"\n" {
			t.Errorf("%s: %q, %v, want %q", c.args, out, err, c.out)
		}
		if got := f.taken(); !reflect.DeepEqual(got, []string{c.order}) {
			t.Errorf("%s: the daemon was ordered %q, want %q", c.args, got, c.order)
		}
	}
}

func TestMistakesInOrders(t *testing.T) {
	f := newFake()
	f.ifaces = []string{"ib0", "ib1"}
	path, _ := serve(t, f)
	for args, want := range map[string]string{
		"reset":                        "specify what to reset: qp, cq or device",
		"reset qp cq":                  "specify what to reset",
		"reset world":                  `cannot reset "world": use qp, cq or device`,
		"reset qp":                     "choose one with --interface: ib0, ib1",
		"reset qp --interface ib7":     `no interface "ib7"`,
		"reset qp --device soft":       "not a device",
		"reset device --interface ib0": "all interfaces of the device",
		"recover --device hard":        `no device "hard"`,
		"recover now":                  "recover takes no argument",
		"suspend now":                  "suspend takes no argument",
		"suspend --wait=long":          `--wait: "long" is not a duration`,
		"suspend --wait 5s":            "--wait takes its duration after '=': --wait=5s",
		"reset qp --wait 1m":           "--wait takes its duration after '=': --wait=1m",
		"suspend 5s":                   "suspend takes no argument",
		"fault":                        "fault takes one kind; 'ipoibd fault --list' lists them",
		"fault unplug replug":          "fault takes one kind",
		"fault earthquake":             `no fault "earthquake"; 'ipoibd fault --list' lists them`,
		"fault --list unplug":          "--list takes no kind",
		"fault replug --after 1":       "replug takes no after",
		"fault unplug --count many":    "--count",
		"fault unplug --count 0":       "--count 1 or more",
		"fault unplug --after -1":      "--after takes 0 or more",
	} {
		out, _, err := ipoibd(t, append(strings.Fields(args), "--control", path)...)
		if err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %q, %v, want %q", args, out, err, want)
		}
	}
	if got := f.taken(); got != nil {
		t.Errorf("the daemon was ordered %q", got)
	}
}

func TestOrdersSayWhyNot(t *testing.T) {
	f := newFake()
	f.err = fmt.Errorf("%w: start the daemon with --allow-faults", control.ErrNotAllowed)
	path, stop := serve(t, f)
	for _, args := range []string{"fault unplug", "reset qp", "recover", "suspend", "resume"} {
		out, _, err := ipoibd(t, append(strings.Fields(args), "--control", path)...)
		if err == nil || err.Error() != "not allowed: start the daemon with --allow-faults" || out != "" {
			t.Errorf("%s: %q, %v", args, out, err)
		}
	}
	stop()
	for _, args := range []string{"fault unplug", "reset qp", "recover", "suspend", "resume", "events", "status"} {
		if _, _, err := ipoibd(t, append(strings.Fields(args), "--control", path)...); !errors.Is(err, control.ErrNotRunning) {
			t.Errorf("%s without a daemon: %v", args, err)
		}
	}
}

func TestFaultListNeedsNoDaemon(t *testing.T) {
	out, _, err := ipoibd(t, "fault", "--list", "--control", "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	kinds := control.FaultKinds()
	if len(lines) != len(kinds) {
		t.Fatalf("%d lines, want %d", len(lines), len(kinds))
	}
	for i, k := range kinds {
		if f := strings.Fields(lines[i]); f[0] != k.Name || strings.Join(f[1:], " ") != k.Text {
			t.Errorf("%q, want %s, %s", lines[i], k.Name, k.Text)
		}
	}
}

// With --wait an order returns once the devices and interfaces concerned work again.
func TestWait(t *testing.T) {
	since := time.Now()
	ib0, ib1 := report.Interface{Name: "ib0", Device: "soft"}, report.Interface{Name: "ib1", Device: "other"}
	ib0.Recovery = &report.Recovery{State: "resetting", Rung: "reset_qp", Reason: "operator", Since: since}
	ib1.Recovery = &report.Recovery{State: "healthy", Rung: "none"}
	device := func(name, state, rung string, since time.Time) report.Device {
		return report.Device{Name: name, Recovery: &report.Recovery{State: state, Rung: rung, Reason: "removed", Since: since}}
	}
	healthy := device("soft", "healthy", "none", time.Time{})
	for _, c := range []struct {
		name, args string
		status     report.Status
		want       string // beginning of the error; "": none
	}{
		{"healthy", "reset qp --wait", report.Status{Devices: []report.Device{healthy}, Interfaces: []report.Interface{ib1}}, ""},
		{"interface recovers", "reset qp --wait=500ms", report.Status{Interfaces: []report.Interface{ib0}}, "not done within 500ms; still in progress: ib0: reset_qp (resetting) because of operator"},
		{"interface of the device recovers", "reset device --wait=500ms", report.Status{Interfaces: []report.Interface{ib0}}, "not done within 500ms; still in progress: ib0"},
		{"another device waits", "recover --wait=5s", report.Status{Devices: []report.Device{healthy, device("other", "waiting", "wait_for_device", since)}}, ""},
		{"any device waits", "resume --wait=500ms", report.Status{Devices: []report.Device{healthy, device("other", "waiting", "wait_for_device", since)}}, "not done within 500ms; still in progress: other: wait_for_device"},
		{"given up", "recover --wait=5s", report.Status{Devices: []report.Device{device("soft", "given_up", "give_up", since)}}, "soft: give_up (given_up) because of removed"},
		{"suspended", "suspend --wait=5s", report.Status{Devices: []report.Device{device("soft", "suspended", "suspend", since)}, Interfaces: []report.Interface{ib0}}, ""},
		{"without --wait", "reset qp", report.Status{Interfaces: []report.Interface{ib0}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			f.status = c.status
			path, _ := serve(t, f)
			_, _, err := ipoibd(t, append(strings.Fields(c.args), "--control", path)...)
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.args, err, c.want)
			}
		})
	}
}

// The daemon removes an interface that was added to it. The command handles any other, and one that does not exist.
func TestDelete(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	if _, _, err := ipoibd(t, "delete", "--control", path, "nope0"); err != nil || !slices.Equal(f.taken(), []string{"remove nope0"}) {
		t.Errorf("added at run time: %v", err)
	}
	f.change(func() { f.err = control.ErrNotFound })
	if _, _, err := ipoibd(t, "delete", "--control", path, "nope0"); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("it does not exist: %v", err)
	}
	if _, _, err := ipoibd(t, "delete", "--control", path, "--if-exists", "nope0"); err != nil {
		t.Errorf("--if-exists: %v", err)
	}
}

// The shell completes the names that the daemon knows, and the values of flags.
func TestCompletionOfValues(t *testing.T) {
	f := newFake()
	f.status = named()
	path, _ := serve(t, f)
	for args, want := range map[string]string{
		"events --control " + path + " --interface": "ib0\n",
		"reset --control " + path + " --device":     "soft\n",
		"run --reset":                               "none\nlink\ndriver\npci\n",
		"run --log-level":                           "debug\ninfo\nwarn\nerror\n",
		"run --device":                              "soft\n",
		"run --underlay":                            "lo\n",
		"devices --underlay":                        "lo\n",
		"delete":                                    "lo\n",
		"fault --verb":                              "query_qp\n",
	} {
		out, _, err := ipoibd(t, append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %q, %v, want %q", args, out, err, want)
		}
	}
}

// The shell completes one kind of fault, and shows the texts of all kinds.
func TestCompletionOfKinds(t *testing.T) {
	out, _, err := ipoibd(t, "__complete", "fault", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range control.FaultKinds() {
		if !strings.Contains(out, k.Name+"\t"+k.Text+"\n") {
			t.Errorf("no %s in %q", k.Name, out)
		}
	}
	out, _, err = ipoibd(t, "__complete", "fault", "unplug", "")
	if err != nil || strings.Contains(out, "replug") {
		t.Errorf("a second one: %q, %v", out, err)
	}
	for _, cmd := range []string{"status", "ping"} { // neither takes a file
		out, _, err = ipoibd(t, "__complete", cmd, "")
		if err != nil || out != ":4\n" {
			t.Errorf("%s: %q, %v", cmd, out, err)
		}
	}
	out, _, err = ipoibd(t, "__complete", "reset", "")
	if err != nil || !strings.HasPrefix(out, "qp\ncq\ndevice\n") {
		t.Errorf("scopes: %q, %v", out, err)
	}
}

// The command prints what was done with each device and interface. Mistakes in the file are a usage
// error, and what could not be done completely is a failure.
func TestReload(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	f.change(func() {
		f.reload = report.Reload{
			Devices:    []report.Outcome{{Name: "soft", Change: "kept", Fields: []string{}}},
			Interfaces: []report.Outcome{{Name: "ib0", Change: "changed", Fields: []string{"mtu", "addresses"}}, {Name: "ib1", Change: "removed", Fields: []string{}}},
		}
	})
	reload := func(args ...string) (out string, code int, err error) {
		var stdout bytes.Buffer
		root := rootCommand()
		root.SetOut(&stdout)
		root.SetArgs(append([]string{"reload", "--control", path}, args...))
		code, err = execute(t.Context(), root)
		return stdout.String(), code, err
	}
	const text = "device soft    kept\ninterface ib0  changed (mtu, addresses)\ninterface ib1  removed\n"
	if out, code, err := reload(); out != text || code != 0 || err != nil {
		t.Errorf("%q, exit %d, %v", out, code, err)
	}
	out, code, err := reload("--json")
	var got report.Reload
	if e := json.Unmarshal([]byte(out), &got); e != nil || !reflect.DeepEqual(got, f.reload) || code != 0 || err != nil {
		t.Errorf("%s, exit %d, %v", out, code, err)
	}
	f.change(func() { f.reload.Interfaces[0].Error = "address 10.9.0.1/24: refused" })
	if out, code, err := reload(); !strings.Contains(out, "refused") || code != exitFailure || err == nil || !strings.Contains(err.Error(), "only partly applied: interface ib0: changed (mtu, addresses): address") {
		t.Errorf("%q, exit %d, %v", out, code, err)
	}
	f.change(func() { f.err = fmt.Errorf("%w: x.yaml:3: devices[0].lanes: 3", control.ErrMistake) })
	if out, code, err := reload(); out != "" || code != exitUsage || err == nil || !strings.Contains(err.Error(), "x.yaml:3: ") {
		t.Errorf("%q, exit %d, %v", out, code, err)
	}
	f.change(func() { f.err = errors.New("there is no file") })
	if out, code, err := reload(); out != "" || code != exitFailure || err == nil {
		t.Errorf("%q, exit %d, %v", out, code, err)
	}
}
