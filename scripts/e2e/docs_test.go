package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// docs/counters.md describes all counters of a daemon on the software HCA, and no others but those of InfiniBand. A
// name with an asterisk stands for all counters that begin with it; some of them exist only
// after their first event.
func TestCountersAreDocumented(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	text, err := os.ReadFile("../../docs/counters.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = true
		}
	}
	describes := func(name string) bool {
		for row := range documented {
			if prefix, family := strings.CutSuffix(row, "*"); row == name || family && strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
	h := newHosts(t, 1)[0]
	h.start("--fast-path", "--peer", nstest.IPv4(2)) // for the counters of the fast path and of peers
	h.Run("ip", "link", "set", ifName, "up")
	h.waitCarrier()
	s := h.counted()
	shown := map[string]bool{}
	for _, counters := range []map[string]uint64{s.Devices[0].Counters, s.Interfaces[0].Counters, s.Interfaces[0].Kernel} {
		for name := range counters {
			if shown[name] = true; !describes(name) {
				t.Errorf("docs/counters.md does not describe %s", name)
			}
		}
	}
	for name := range documented {
		if !shown[name] && !strings.HasSuffix(name, "*") && !strings.HasPrefix(name, "sa_") {
			t.Errorf("docs/counters.md describes %s, which does not exist", name)
		}
	}
	t.Logf("%d counters", len(shown))
}

// `make demo` shows two hosts that talk over ib0.
func TestDemo(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	script, err := filepath.Abs("../demo")
	if err != nil {
		t.Fatal(err)
	}
	demo := exec.CommandContext(t.Context(), script, "1500")
	demo.Env = append(os.Environ(), "DEMO_SECONDS=1", "IPOIBD="+os.Getenv(daemonEnv))
	out, err := demo.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// The commands in README's section Use, in their order, connect two hosts, one of which then
// gives ib0 to a container.
func TestReadmeUse(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Use\n")
	section, _, _ = strings.Cut(section, "\n```yaml\n")
	ownAddr := []string{"10.0.0.1/", "10.0.0.2/"}
	lines := regexp.MustCompile(`(?m)^    (\S[^#\n]*)`).FindAllStringSubmatch(section, -1)
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	container := exec.CommandContext(t.Context(), "unshare", "--net", "sleep", "infinity")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = container.Process.Kill(); _ = container.Wait() })
	pid := strconv.Itoa(container.Process.Pid)
	reaches := func(prefix ...string) func() bool {
		ping := slices.Concat(prefix, strings.Fields("ping -n -c 1 -W 0.2 10.0.0.2"))
		return func() bool { return a.Command(ping[0], ping[1:]...).Run() == nil }
	}
	for _, m := range lines {
		line := strings.NewReplacer("POD", pid, "/PID/", "/"+pid+"/").Replace(strings.TrimSpace(m[1]))
		words := strings.Fields(line)
		t.Log(line)
		switch {
		case strings.HasPrefix(line, "ipoibd run "):
			for _, h := range hosts {
				if h.daemon != nil {
					h.daemon.stop()
				}
				own := strings.NewReplacer("10.0.0.1/", ownAddr[h.number], h.underlay().String(), hosts[1-h.number].underlay().String())
				args := strings.Fields(own.Replace(line))[1:]
				control := filepath.Join(h.dir, "control.sock")
				h.daemon = launch(t, h.Namespace, control, append(args, "--control", control)...)
			}
		case line == "ipoibd devices":
			a.Run(os.Getenv(daemonEnv), words[1:]...)
		case line == "ipoibd top":
			s := a.topScreen()
			s.waitShows(t, "› "+ifName)
			s.press(t, "q")
		case strings.HasPrefix(line, "ipoibd capture "):
			ping := a.Command("ping", "-i", "0.2", "-w", "30", "10.0.0.2")
			if err := ping.Start(); err != nil {
				t.Fatal(err)
			}
			pipe := a.Command("sh", "-c", "timeout 3 "+os.Getenv(daemonEnv)+strings.TrimPrefix(line, "ipoibd"))
			pipe.Env = append(os.Environ(), "IPOIBD_CONTROL="+a.daemon.control)
			if out, err := pipe.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("Echo (ping) request")) {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			end(t, ping)
		case words[0] == "ipoibd": // events --follow does not end; a ping takes 5 s, and doctor watches for 2 s, also for a bug report
			if words[1] == "bugreport" {
				words = append(words, "--output", filepath.Join(t.TempDir(), "report.tar.gz"))
			}
			follows := slices.Contains(words, "--follow")
			limit := map[bool]string{true: "1", false: "30"}[follows]
			out, err := a.Command("timeout", slices.Concat([]string{limit, os.Getenv(daemonEnv)}, words[1:], []string{"--control", a.daemon.control})...).CombinedOutput()
			if err != nil && !follows || bytes.Contains(out, []byte("ipoibd: ")) {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		case strings.HasPrefix(line, "ip link set ib0 netns"):
			eventually(t, carrierLimit, "the hosts with --peer reach each other", reaches())
			a.Run("sh", "-c", line)
		case words[0] == "nsenter":
			a.Run("sh", "-c", line)
		default:
			a.Run("sh", "-c", line)
			b.Run("sh", "-c", strings.ReplaceAll(line, "10.0.0.1", "10.0.0.2"))
		}
		if line == "ip link set ib0 up" {
			eventually(t, carrierLimit, "the hosts reach each other", reaches())
		}
	}
	eventually(t, carrierLimit, "the container reaches the other host", reaches("nsenter", "--net=/proc/"+pid+"/ns/net"))
	if len(lines) < 9 {
		t.Errorf("found %d commands, want 9 at least: does the expression still match?", len(lines))
	}
}
