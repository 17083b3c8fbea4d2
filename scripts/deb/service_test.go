package deb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Environment of the test's child in its own network, in which nothing can be downloaded.
const (
	nextEnv = "TEST_IPOIBD_DEB_NEXT"
	rootEnv = "TEST_IPOIBD_DEB_ROOT"
)

// Addresses of ib0.
const (
	ours  = "10.9.0.1"
	peers = "10.9.0.2"
)

// settings are the variables of the service.
const settings = "IPOIBD_UNDERLAY=eth0\nIPOIBD_ADDRESS=" + ours + "/24\nIPOIBD_UP=true\n"

// Replacements of the unit's WatchdogSec=30s in the steps that wait for the watchdog, which make these shorter. The
// other steps keep it, because a busy machine may keep a daemon waiting for seconds.
const (
	watchdog        = "4s" // of a daemon that hangs
	watchdogOfHeirs = 10 * time.Second
)

// dropIns is the directory of the unit's drop-ins.
const dropIns = "/run/systemd/system/ipoibd.service.d/"

// The package is installed on a machine with systemd. Its service is configured, hangs and is
// restarted, upgraded, removed and purged; a TCP connection over ib0 survives all but the removal.
func TestPackage(t *testing.T) {
	if os.Getenv(rootEnv) == "" {
		first(t)
		if os.Getenv(nextEnv) == "" {
			t.Setenv(nextEnv, upgrade(t))
		}
		t.Setenv(rootEnv, debian(t))
	}
	if nstest.EnterAlone(t) {
		return
	}
	start := time.Now()
	m := boot(t, os.Getenv(rootEnv))
	t.Logf("booted in %v", time.Since(start).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := m.in("journalctl", "--no-pager", "--output=short-precise", "--unit=ipoibd.service").CombinedOutput()
			t.Logf("the journal:\n%s", out)
		}
	})
	for _, step := range []struct {
		name string
		do   func(*machine)
	}{{"install", install}, {"start", begin}, {"sandbox", sandbox}, {"hang", hang}, {"operations", operations}, {"reload", reload}, {"succeed", succeed}, {"follow", follow}, {"lend", lend}, {"upgrade", replace}, {"remove", remove}} {
		at := time.Now()
		ok := t.Run(step.name, func(t *testing.T) {
			m.t = t
			step.do(m)
		})
		m.t = t
		if t.Logf("%s: %v", step.name, time.Since(at).Round(time.Millisecond)); !ok {
			break
		}
	}
}

// copyIn copies a file to the machine's /root.
func (m *machine) copyIn(path string) (inside string) {
	m.t.Helper()
	inside = "/root/" + filepath.Base(path)
	m.must(m.docker("cp", path, name+":"+inside))
	return inside
}

// install: the installed service is neither enabled nor started, because it would connect the host
// to anyone on the network.
func install(m *machine) {
	m.run("dpkg", "--install", m.copyIn(first(m.t)))
	for what, want := range map[string]string{"UnitFileState": "disabled", "ActiveState": "inactive", "LoadError": ""} {
		if got := m.property(what); got != want {
			m.t.Errorf("%s is %q, want %q", what, got, want)
		}
	}
	if out, err := m.in("systemd-analyze", "verify", "--man=no", "ipoibd.service").CombinedOutput(); err != nil || strings.Contains(string(out), "ipoibd") {
		m.t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// begin: with its variables set, the service is ready when ib0 exists and its socket answers, and
// systemctl shows the state of ib0.
func begin(m *machine) {
	m.write("/etc/default/ipoibd", settings)
	m.run("systemctl", "enable", "--now", "ipoibd")
	m.run("ipoibd", "status")
	m.run("test", "-d", "/sys/class/net/ib0")
	m.waitUp()
	m.waitLogged("the system waits for this daemon before it sleeps")
	if log := m.log(); strings.Contains(log, "level=WARN") {
		m.t.Errorf("the unit lacks something that the daemon wants:\n%s", log)
	}

	dir := m.t.TempDir()
	output(m.t, "dpkg-deb", "--extract", first(m.t), dir)
	peer := exec.Command(dir+"/usr/bin/ipoibd", "run", "--underlay", "pod0", "--address", peers+"/24", "--up", "--control", dir+"/sock")
	var log bytes.Buffer
	peer.Stderr = &log
	peer.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := peer.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.whole.Cleanup(func() {
		_ = peer.Process.Kill()
		_ = peer.Wait()
		if m.whole.Failed() {
			m.whole.Logf("the peer:\n%s", log.String())
		}
	})
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// waitUp waits until systemd shows that ib0 is up.
func (m *machine) waitUp() {
	m.t.Helper()
	eventually(m.t, "ib0 is up", func() bool { return m.property("StatusText") == "ib0 up" })
}

// log returns what the journal has of the service. journald writes it a little later.
func (m *machine) log() string {
	m.t.Helper()
	return m.run("journalctl", "--no-pager", "--unit=ipoibd.service")
}

// waitLogged waits until the journal contains a text.
func (m *machine) waitLogged(text string) {
	m.t.Helper()
	eventually(m.t, "the journal contains "+text, func() bool { return strings.Contains(m.log(), text) })
}

// identity is what must not change while the daemon is restarted.
func (m *machine) identity() string {
	m.t.Helper()
	return m.run("cat", "/sys/class/net/ib0/ifindex") + m.run("ip", "-oneline", "-4", "address", "show", "dev", "ib0")
}

// stream is an iperf3 client in the machine that sends until it is stopped, with the server at the peer.
type stream struct {
	m              *machine
	server, client *exec.Cmd
	out            bytes.Buffer
}

// stream starts to send.
func (m *machine) stream() *stream {
	m.t.Helper()
	s := &stream{m: m, server: exec.Command("iperf3", "--server", "--one-off", "--bind", peers)}
	s.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.server.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = s.server.Process.Kill(); _ = s.server.Wait() })
	eventually(m.t, "iperf3 listens", func() bool { return strings.Contains(output(m.t, "ss", "-Hltn", "sport = :5201"), peers) })
	s.client = m.in("iperf3", "--client", peers, "--time", "0", "--interval", "0.1", "--json")
	s.client.Stdout = &s.out
	if err := s.client.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if s.client.ProcessState == nil {
			s.stop()
			m.t.Logf("iperf3 of the machine has written %.4000s", s.out.String())
		}
	})
	eventually(m.t, "the TCP connection carries data", func() bool { return s.acked() > 1<<20 })
	return s
}

// stop has the client print its results, which takes no answer from the peer.
func (s *stream) stop() {
	_ = s.m.in("sh", "-c", "kill $(pidof iperf3)").Run()
	_ = s.client.Wait()
}

// acked returns how many bytes the peer has acknowledged, by the sender's own counters.
func (s *stream) acked() (sum int) {
	for _, m := range regexp.MustCompile(`bytes_acked:(\d+)`).FindAllStringSubmatch(s.m.run("ss", "-Htin", "dport = :5201"), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			s.m.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// survives requires that the connection carries data now, and stops it. It returns the longest time without data.
func (s *stream) survives() (outage time.Duration) {
	t := s.m.t
	t.Helper()
	before := s.acked()
	eventually(t, "the TCP connection carries data", func() bool { return s.acked() > before })
	s.stop()
	var result struct {
		Error     string `json:"error"`
		Intervals []struct {
			Sum struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum"`
		} `json:"intervals"`
	}
	if err := json.Unmarshal(s.out.Bytes(), &result); err != nil || !strings.Contains(result.Error, "terminated") || len(result.Intervals) == 0 {
		t.Fatalf("iperf3: %v, %q, %d intervals", err, result.Error, len(result.Intervals))
	}
	var silent float64
	for _, i := range result.Intervals {
		if silent += i.Sum.Seconds; i.Sum.Bytes > 0 {
			silent = 0
		}
		outage = max(outage, time.Duration(silent*float64(time.Second)))
	}
	return outage
}

// hang: a daemon that does nothing any more is killed by the watchdog, and restarted.
func hang(m *machine) {
	s := m.stream()
	m.write(dropIns+"hang.conf", "[Service]\nWatchdogSec="+watchdog+"\n")
	m.run("sh", "-c", "systemctl daemon-reload && systemctl restart ipoibd")
	before, pid, restarts := m.identity(), m.property("MainPID"), m.property("NRestarts")
	m.run("sh", "-c", "kill -STOP "+pid)
	stopped := time.Now()
	eventually(m.t, "systemd restarts the daemon", func() bool {
		return m.property("NRestarts") != restarts && m.property("ActiveState") == "active" && m.property("MainPID") != pid
	})
	m.t.Logf("the daemon is restarted %v after it was stopped, with WatchdogSec=%s", time.Since(stopped).Round(time.Millisecond), watchdog)
	m.waitUp()
	m.t.Logf("the TCP connection has survived; its longest time without data, at the sender, was %v", s.survives())
	if now := m.identity(); now != before {
		m.t.Errorf("ib0 was %s, is %s", before, now)
	}
	m.waitLogged("Watchdog timeout (limit " + watchdog + ")")
	m.run("sh", "-c", "rm "+dropIns+"hang.conf && systemctl daemon-reload && systemctl restart ipoibd") // WatchdogSec= is that of its start
	m.waitUp()
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// operations: the commands for symptoms in docs/operations.md work.
func operations(m *machine) {
	page, err := os.ReadFile(tree + "/docs/operations.md")
	if err != nil {
		m.t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Symptoms")
	rows := regexp.MustCompile(`(?m)^\|.*\|.*\| (.*) \|$`).FindAllStringSubmatch(table, -1)
	done := 0
	for _, row := range rows {
		for _, command := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if out, err := m.in("sh", "-c", command[1]).CombinedOutput(); err != nil {
				m.t.Errorf("%s: %v\n%s", command[1], err, out)
			}
			done++
		}
	}
	if m.t.Logf("%d commands", done); done < 15 {
		m.t.Errorf("found %d commands, want 15 at least: does the expression still match?", done)
	}
	m.waitUp() // the last command restarts the daemon
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// reload: "systemctl reload" applies a changed file while the daemon runs on, and fails if the file
// has a mistake.
func reload(m *machine) {
	const added = "10.9.1.1"
	file := "interfaces:\n  - up: true\n    addresses: [" + ours + "/24%s]\ndevices:\n  - underlay: eth0\n"
	m.write("/etc/ipoibd/ipoibd.yaml", fmt.Sprintf(file, ""))
	before := m.identity()
	m.write("/etc/default/ipoibd", "IPOIBD_CONFIG=/etc/ipoibd/ipoibd.yaml\n")
	m.run("systemctl", "restart", "ipoibd")
	m.waitUp()
	pid := m.property("MainPID")
	if now := m.identity(); now != before {
		m.t.Errorf("ib0 was %s, is %s", before, now)
	}
	m.write("/etc/ipoibd/ipoibd.yaml", fmt.Sprintf(file, ", "+added+"/24"))
	m.run("systemctl", "reload", "ipoibd")
	if now := m.identity(); !strings.Contains(now, added) {
		m.t.Errorf("the addresses of ib0 after the reload are %s, want %s too", now, added)
	}
	m.write("/etc/ipoibd/ipoibd.yaml", "interface: []\n")
	if out, err := m.in("systemctl", "reload", "ipoibd").CombinedOutput(); err == nil {
		m.t.Errorf("a file with a mistake was applied: %s", out)
	}
	m.waitLogged("/etc/ipoibd/ipoibd.yaml:1") // the mistake
	m.write("/etc/ipoibd/ipoibd.yaml", fmt.Sprintf(file, ""))
	m.run("systemctl", "reload", "ipoibd")
	if now := m.identity(); now != before || m.property("MainPID") != pid {
		m.t.Errorf("ib0 was %s, is %s; the daemon was process %s, is %s", before, now, pid, m.property("MainPID"))
	}
	m.run("rm", "/etc/ipoibd/ipoibd.yaml")
	m.write("/etc/default/ipoibd", settings)
	m.run("systemctl", "restart", "ipoibd")
	m.waitUp()
}

// succeed: with the drop-in of docs/operations.md, "systemctl reload" replaces the process while a TCP
// connection continues. systemd follows the new one, whose watchdog it still watches, and does not count a
// restart, even if processes succeed each other for longer than WatchdogSec= without a break.
func succeed(m *machine) {
	page, err := os.ReadFile(tree + "/docs/operations.md")
	if err != nil {
		m.t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^    \[Service\]\n    (ExecReload=)\n    (ExecReload=.*)$`).FindStringSubmatch(string(page))
	if lines == nil {
		m.t.Fatal("docs/operations.md no longer shows the drop-in")
	}
	const unit = dropIns + "succeed.conf"
	m.write(unit, fmt.Sprintf("[Service]\n%s\n%s\nWatchdogSec=%v\n", lines[1], lines[2], watchdogOfHeirs))
	m.run("sh", "-c", "systemctl daemon-reload && systemctl restart ipoibd")
	m.waitUp()
	before, restarts := m.identity(), m.property("NRestarts")
	s := m.stream()
	n := 0
	for began := time.Now(); time.Since(began) < watchdogOfHeirs*3/2; n++ {
		pid := m.property("MainPID")
		m.run("systemctl", "reload", "ipoibd")
		eventually(m.t, "systemd follows the new process", func() bool {
			now := m.property("MainPID")
			return now != pid && now != "0" && m.in("test", "-e", "/proc/"+pid).Run() != nil
		})
		m.waitUp()
	}
	m.t.Logf("the TCP connection has survived %d hand-overs; its longest time without data, at the sender, was %v", n, s.survives())
	pid := m.property("MainPID")
	time.Sleep(watchdogOfHeirs * 5 / 4)
	if now, state, count := m.property("MainPID"), m.property("ActiveState"), m.property("NRestarts"); now != pid || state != "active" || count != restarts {
		m.t.Errorf("the main process was %s, is %s; the service is %s, restarted %s times, was %s", pid, now, state, count, restarts)
	}
	if now := m.identity(); now != before {
		m.t.Errorf("ib0 was %s, is %s", before, now)
	}
	if out := m.run("ipoibd", "status", "--json"); !strings.Contains(out, `"pid": `+pid+",") {
		m.t.Errorf("the status is that of another process than %s:\n%.300s", pid, out)
	}
	m.run("sh", "-c", "rm "+unit+" && systemctl daemon-reload && systemctl restart ipoibd")
	m.waitUp()
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// dropIn restarts the service with the drop-in of docs/operations.md. undo removes it.
func dropIn(m *machine) (undo func()) {
	page, err := os.ReadFile(tree + "/docs/operations.md")
	if err != nil {
		m.t.Fatal(err)
	}
	lines := regexp.MustCompile("container's network namespace \\(`(.*?)`\\) \\| `(.*?)` and `(.*?)`").FindStringSubmatch(string(page))
	if lines == nil {
		m.t.Fatal("docs/operations.md no longer shows the drop-in")
	}
	const path = dropIns + "follow.conf"
	m.write(path, "[Service]\nEnvironment="+lines[1]+"\n"+lines[2]+"\n"+lines[3]+"\n")
	m.run("sh", "-c", "systemctl daemon-reload && systemctl restart ipoibd")
	return func() { m.run("sh", "-c", "rm "+path+" && systemctl daemon-reload && systemctl restart ipoibd") }
}

// follow: with the drop-in of docs/operations.md, the daemon serves ib0 in another network namespace.
func follow(m *machine) {
	undo := dropIn(m)
	m.run("sh", "-c", "ip netns add box && ip link set ib0 netns box")
	m.run("sh", "-c", "ip -n box address replace "+ours+"/24 dev ib0 && ip -n box link set ib0 up")
	eventually(m.t, "the peer answers a ping from the other namespace", func() bool {
		return m.in("nsenter", "--net=/run/netns/box", "ping", "-c1", "-W1", peers).Run() == nil
	})
	m.run("sh", "-c", "ip -n box link set ib0 netns 1 && ip netns delete box")
	undo()
	m.waitUp()
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// lend: with the same drop-in, the packaged CNI plugin gives a pod an interface, although the service is
// not root, and in a mount namespace of its own. The pod keeps it when the daemon is killed, and it
// goes with the pod.
func lend(m *machine) {
	m.run("ip", "netns", "add", "pod")
	m.write("/etc/ipoibd/ipoibd.yaml", "lend: true\ninterfaces:\n  - up: true\n    addresses: ["+ours+"/24]\ndevices:\n  - underlay: eth0\n")
	m.write("/etc/default/ipoibd", "IPOIBD_CONFIG=/etc/ipoibd/ipoibd.yaml\n")
	undo := dropIn(m)
	plugin := func(command string) {
		m.run("sh", "-c", `echo '{"cniVersion": "1.0.0", "name": "fabric", "type": "ipoibd"}' |
			CNI_COMMAND=`+command+` CNI_CONTAINERID=pod CNI_NETNS=/var/run/netns/pod CNI_IFNAME=net1 CNI_PATH=/usr/lib/cni /usr/lib/cni/ipoibd`)
	}
	plugin("ADD")
	m.run("ip", "-n", "pod", "address", "add", "10.9.0.3/24", "dev", "net1")
	answers := func() bool {
		return m.in("nsenter", "--net=/run/netns/pod", "ping", "-c1", "-W1", peers).Run() == nil
	}
	eventually(m.t, "the peer answers a ping from the pod", answers)
	m.run("systemctl", "kill", "--signal=KILL", "ipoibd")
	eventually(m.t, "the peer answers a ping from the pod after the daemon was killed", answers)
	m.run("ip", "netns", "delete", "pod")
	eventually(m.t, "the interface has failed with its pod", func() bool {
		return strings.Contains(m.run("ipoibd", "status", "--json"), `"state": "failed"`)
	})
	plugin("DEL")
	m.run("rm", "/etc/ipoibd/ipoibd.yaml")
	m.write("/etc/default/ipoibd", settings)
	undo()
	m.waitUp()
	if status := m.run("ipoibd", "status", "--json"); strings.Contains(status, "cni/fabric") {
		m.t.Error(status)
	}
	eventually(m.t, "the peer answers a ping", func() bool { return m.in("ping", "-c1", "-W1", peers).Run() == nil })
}

// replace: an upgrade restarts the daemon, and ib0 with its addresses and connections stays.
func replace(m *machine) {
	before, pid := m.identity(), m.property("MainPID")
	s := m.stream()
	m.run("dpkg", "--install", m.copyIn(os.Getenv(nextEnv)))
	m.waitUp()
	var status struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal([]byte(m.run("ipoibd", "status", "--json")), &status); err != nil || !strings.HasPrefix(status.Version, "99.0.0 ") {
		m.t.Errorf("the daemon's version is %q (%v)", status.Version, err)
	}
	if m.property("MainPID") == pid || m.property("UnitFileState") != "enabled" {
		m.t.Errorf("PID %s, was %s; %s", m.property("MainPID"), pid, m.property("UnitFileState"))
	}
	m.t.Logf("the TCP connection has survived; its longest time without data, at the sender, was %v", s.survives())
	if now := m.identity(); now != before {
		m.t.Errorf("ib0 was %s, is %s", before, now)
	}
}

// remove: the removed service is stopped and ib0 stays without carrier. Once the package is purged,
// nothing is left but its user.
func remove(m *machine) {
	before := m.identity()
	m.run("dpkg", "--remove", "ipoibd")
	if out, err := m.in("pidof", "ipoibd").Output(); err == nil {
		m.t.Errorf("a daemon still runs: %s", out)
	}
	if now, carrier := m.identity(), m.run("cat", "/sys/class/net/ib0/carrier"); now != before || carrier != "0\n" {
		m.t.Errorf("ib0 was %s, is %s with carrier %s", before, now, carrier)
	}
	m.run("test", "-e", "/etc/default/ipoibd")
	m.run("rm", "-r", dropIns)
	m.run("dpkg", "--purge", "ipoibd")
	if out := m.run("find", "/etc", "/lib", "/usr", "/var", "/run", "-xdev", "-name", "*ipoibd*"); out != "" {
		m.t.Errorf("left behind:\n%s", out)
	}
	m.run("ip", "link", "delete", "ib0")
}
