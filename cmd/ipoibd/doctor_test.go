package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/doctor"
	"ipoibd/cmd/ipoibd/internal/report"
)

// examined runs doctor against a daemon with a status, and returns its output and exit code.
func examined(t *testing.T, s report.Status, args ...string) (out string, code int, err error) {
	t.Helper()
	f := newFake()
	f.status = s
	path, _ := serve(t, f)
	return diagnosed(t, append(args, "--control", path, "--watch", "0")...)
}

func diagnosed(t *testing.T, args ...string) (out string, code int, err error) {
	t.Helper()
	var text strings.Builder
	root := rootCommand()
	root.SetOut(&text)
	root.SetArgs(append([]string{"doctor"}, args...))
	code, err = execute(t.Context(), root)
	t.Logf("exit code %d, %v\n%s", code, err, &text)
	return text.String(), code, err
}

// running returns the status of a daemon of this version, in which an interface is down.
func running(name string) report.Status {
	down := idle(name)
	down.State, down.Reason = "down", "admin_down"
	return report.Status{
		SchemaVersion: report.SchemaVersion, Version: strings.TrimPrefix(version(), "ipoibd "), Time: epoch, PID: os.Getpid(), FDs: 9,
		Interfaces: []report.Interface{down}, Devices: []report.Device{healthy("soft")},
	}
}

func TestDoctorPrintsFindings(t *testing.T) {
	out, code, err := examined(t, running("ib0"))
	const want = "error     ib0: the interface is down (interface_down)\n" +
		"  because it was never brought up, or it was taken down (admin_down)\n" +
		"  do      bring it up; --up does that at the start\n" +
		"          ip link set ib0 up\n"
	if !strings.HasPrefix(out, want) || code != exitNotReady || err == nil {
		t.Errorf("printed\n%s\nexit code %d, %v; want\n%s", out, code, err, want)
	}
}

// A name from the control socket can neither change the terminal nor end a command.
func TestDoctorTrustsNoName(t *testing.T) {
	out, _, _ := examined(t, running("\x1b[31mib0\n;reboot"))
	if strings.Contains(out, "\x1b") || !strings.Contains(out, `ip link set '\u001b[31mib0\u000a;reboot' up`+"\n") {
		t.Errorf("printed\n%q", out)
	}
}

func TestDoctorJSON(t *testing.T) {
	s := running("ib0")
	out, code, _ := examined(t, s, "--json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitNotReady {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if len(r.Findings) == 0 || r.Findings[0].ID != "interface_down" || r.Daemon == nil || r.Daemon.PID != s.PID || r.Daemon.Version != s.Version {
		t.Errorf("%+v", r)
	}
}

// What 'ipoibd run' would refuse is a finding, with all mistakes; a mistake in the flags of doctor
// itself is not.
func TestDoctorChecksTheSettings(t *testing.T) {
	control := filepath.Join(t.TempDir(), "c.sock")
	t.Setenv("IPOIBD_MTU", "abc")
	t.Setenv("IPOIBD_LANES", "x")
	t.Setenv("IPOIBD_TYPO", "1")
	out, code, _ := diagnosed(t, "--control", control, "--underlay", "lo")
	contains(t, out, "config_mistake", `IPOIBD_MTU: "abc" is not a whole number`, `IPOIBD_LANES: "x" is not a whole number`, "unset IPOIBD_TYPO")
	if code != exitNotReady {
		t.Errorf("exit code %d, want %d", code, exitNotReady)
	}
	for _, args := range [][]string{{"--watch", "2m"}, {"--watch", "-1s"}, {"now"}, {"--mtu", "abc"}} {
		if out, code, err := diagnosed(t, args...); code != exitUsage || err == nil || out != "" {
			t.Errorf("%q: exit code %d, %v, %q", args, code, err, out)
		}
	}
}
