package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	// diagnoseLimit bounds the time until doctor names what was broken, or falls silent.
	diagnoseLimit = 20 * time.Second
	// doctorLimit is how long one call may take: ten times as long as one that watches for 0.3 s,
	// and as that of a daemon that hangs, 6 s.
	doctorLimit = 60 * time.Second
	// quietTime is more than the 30 s after which a daemon says that it hears no peer.
	quietTime = 31 * time.Second
)

// finding is what these tests use of `ipoibd doctor --json`.
type finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"`
	Evidence string `json:"evidence"`
	Advice   string `json:"advice"`
	Command  string `json:"command"`
}

// patient is a host that doctor examines.
type patient struct {
	*host
	args []string // of doctor, besides --control, --underlay and --watch
	wrap []string // the program that executes doctor, with its arguments
	env  []string
}

// doctor returns the findings, whose form and exit code it checks.
func (p *patient) doctor() []finding {
	p.tb.Helper()
	args := slices.Concat(p.wrap, []string{os.Getenv(daemonEnv), "doctor", "--json", "--watch", "300ms", "--control", filepath.Join(p.dir, "control.sock"), "--underlay", nstest.Dev}, p.args)
	cmd := p.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	start := time.Now()
	out, err := cmd.Output()
	if took := time.Since(start); took > doctorLimit {
		p.tb.Errorf("doctor took %v", took)
	}
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err == nil {
		err = follows(doctorSchemaPath, out)
	}
	var report struct{ Findings []finding }
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	if err != nil {
		p.tb.Fatalf("%v: %v\n%s", args, err, out)
	}
	bad := slices.ContainsFunc(report.Findings, func(f finding) bool { return f.Severity != "hint" })
	if want := map[bool]int{true: 3}[bad]; code != want {
		p.tb.Errorf("exit code %d, want %d: %s", code, want, out)
	}
	return report.Findings
}

// named waits until doctor names a condition, and returns that finding. It is the first one, unless
// others are expected before it.
func (p *patient) named(id string, before ...string) (f finding) {
	p.tb.Helper()
	var all []finding
	for start := time.Now(); ; {
		all = p.doctor()
		i := slices.IndexFunc(all, func(f finding) bool { return f.ID == id })
		if i >= 0 && !slices.ContainsFunc(all[:i], func(f finding) bool { return !slices.Contains(before, f.ID) }) {
			f = all[i]
			break
		}
		if time.Since(start) > diagnoseLimit {
			status, _ := p.ipoibd("status", "-v", "--control", filepath.Join(p.dir, "control.sock")).CombinedOutput()
			p.tb.Fatalf("doctor does not name %s, but %+v\n%s", id, all, status)
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.tb.Logf("%s: %s; do: %s: %s", f.ID, f.Evidence, f.Advice, f.Command)
	return f
}

// silent waits until doctor finds nothing.
func (p *patient) silent() {
	p.tb.Helper()
	var all []finding
	for start := time.Now(); time.Since(start) < diagnoseLimit; time.Sleep(50 * time.Millisecond) {
		if all = p.doctor(); len(all) == 0 {
			return
		}
	}
	p.tb.Fatalf("doctor is not silent on a healthy host: %+v", all)
}

// obey carries the advised command out, with words in capitals replaced.
func (p *patient) obey(f finding, words ...string) {
	p.tb.Helper()
	if f.Command == "" {
		p.tb.Fatalf("no command is advised: %+v", f)
	}
	p.Run("sh", "-c", strings.NewReplacer(words...).Replace(f.Command))
}

// cured does what doctor advises, after which it is silent.
func (p *patient) cured(id string, words ...string) {
	p.tb.Helper()
	p.obey(p.named(id), words...)
	p.silent()
}

// python runs a program in the host until the test ends. It returns when the program has printed a
// line.
func (h *host) python(program string) *exec.Cmd {
	h.tb.Helper()
	cmd := h.Command("python3", "-uc", program)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = out.Read(make([]byte, 64))
	}
	if err != nil {
		h.tb.Fatalf("python3: %v", err)
	}
	h.tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// write writes a file in the host's directory.
func (h *host) write(name, text string) (path string) {
	h.tb.Helper()
	path = filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.tb.Fatal(err)
	}
	return path
}

// keepSending makes a host send all the time, until stop is called or the test ends.
func (h *host) keepSending(to *host) (stop func()) {
	h.tb.Helper()
	ping := h.Command("ping", "-q", "-i", "0.2", to.ip4())
	if err := ping.Start(); err != nil {
		h.tb.Fatal(err)
	}
	stop = func() { _ = ping.Process.Kill(); _ = ping.Wait() }
	h.tb.Cleanup(stop)
	return stop
}

// nft loads rules.
func (h *host) nft(rules string) {
	h.tb.Helper()
	cmd := h.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.tb.Fatalf("nft: %v\n%s", err, out)
	}
}

// setUp is one way to break a host, with the finding that names it.
type setUp struct {
	id    string
	peers int // other hosts on the segment, without daemons
	test  func(p *patient, peers []*host)
}

// Each broken set-up is named, first of all findings unless another one is as true; where a command
// is advised that can be run here, it cures the host, and doctor is silent.
func TestDoctor(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	quiet := startQuiet(t)
	t.Run("set-ups", func(t *testing.T) {
		for i, s := range slices.Concat(beforeAStart, ofADaemon, ofTheNetwork) {
			t.Run(fmt.Sprintf("%d-%s", i, s.id), func(t *testing.T) {
				t.Parallel()
				hosts := newHosts(t, 1+s.peers)
				s.test(&patient{host: hosts[0]}, hosts[1:])
			})
		}
	})
	quiet(t)
}

// A host that could start a daemon, one with a daemon, and two that talk have no findings.
func TestDoctorIsSilentOnHealthyHosts(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := &patient{host: hosts[0]}, &patient{host: hosts[1]}
	check := func(when string) {
		t.Helper()
		for _, p := range []*patient{a, b} {
			if found := p.doctor(); len(found) > 0 {
				t.Errorf("%s: %+v", when, found)
			}
		}
	}
	check("before the first start")
	a.join()
	b.join()
	pingAll(a.host, b.host)
	stop := a.keepSending(b.host)
	check("while they talk")
	stop()
	b.daemon.stop()
	a.silent() // but while its kernel probes the neighbour that has stopped, doctor says that a peer refuses packets
	b.silent()
	out, err := a.ipoibd("doctor", "--control", a.daemon.control, "--watch", "0").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("doctor prints %q, %v", out, err)
	}
}

// Every host of a headless service has itself among its peers, which is healthy, too; so is an
// interface in the network namespace of a container.
func TestDoctorIsSilentInContainers(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	for _, h := range hosts {
		h.join("--peer", nstest.IPv4(0), "--peer", nstest.IPv4(1), "--follow", slowPath)
	}
	a := &patient{host: hosts[0]}
	pingAll(hosts...)
	stop := a.keepSending(hosts[1])
	a.silent()
	stop()
	container := nstest.New(t)
	a.Run("ip", "link", "set", ifName, "netns", container.Path())
	container.Run("ip", "link", "set", ifName, "name", "eth0")
	container.Run("ip", "address", "add", a.ip4()+"/24", "dev", "eth0")
	container.Run("ip", "link", "set", "eth0", "up")
	eventually(t, repairLimit, "the container reaches the other host", func() bool {
		return container.Command("ping", "-c", "1", "-W", "0.2", hosts[1].ip4()).Run() == nil
	})
	a.silent()
}

// startQuiet starts the hosts that have to be silent for half a minute, and returns their checks.
func startQuiet(t *testing.T) (check func(t *testing.T)) {
	hosts := newHosts(t, 2)
	a, b := &patient{host: hosts[0]}, hosts[1]
	b.nft("table inet f {\n chain i {\n type filter hook input priority 0; policy drop;\n }\n}\n")
	a.join("--peer", nstest.IPv4(1))
	alone := &patient{host: newHosts(t, 1)[0]}
	alone.join()
	start := time.Now()
	return func(t *testing.T) {
		time.Sleep(quietTime - time.Since(start))
		a.tb, alone.tb = t, t
		f := a.named("no_peer_answers")
		if !strings.Contains(f.Evidence, nstest.IPv4(1)) {
			t.Errorf("the evidence does not name the peer: %s", f.Evidence)
		}
		if f := alone.named("alone"); f.Severity != "hint" {
			t.Errorf("a host alone on its network: severity %s, want a hint", f.Severity)
		}
	}
}

// Programs that are in the way of a daemon.
const (
	bindsPort  = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.bind(('',4791))\nprint(1)\ntime.sleep(600)\n"
	hasQueue   = "import fcntl,os,struct,time\nf=os.open('/dev/net/tun',os.O_RDWR)\nfcntl.ioctl(f,0x400454ca,struct.pack('16sH22x',b'ib0',0x5102))\nprint(1)\ntime.sleep(600)\n"
	answersBad = "import socket\ns=socket.socket(socket.AF_UNIX)\ns.bind('%s')\ns.listen()\nprint(1)\nwhile True:\n c,_=s.accept()\n try:\n  c.recv(99); c.sendall(b'%s'); c.close()\n except OSError: pass\n"
	// Each answer of this program would take hours.
	answersSlowly = "import socket,threading,time\ns=socket.socket(socket.AF_UNIX)\ns.bind('%s')\ns.listen()\nprint(1)\ndef drip(c):\n try:\n  c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 99999\\r\\n\\r\\n')\n  while True:\n   c.sendall(b' '); time.sleep(.2)\n except OSError: pass\nwhile True: threading.Thread(target=drip,args=s.accept()[:1],daemon=True).start()\n"
)

// mounted makes doctor run after commands that mount something, which others do not see.
func mounted(commands string) []string {
	return []string{"unshare", "--mount", "sh", "-c", commands + ` && exec "$0" "$@"`}
}

// beforeAStart are set-ups without a daemon.
var beforeAStart = []setUp{
	{"config_mistake", 0, func(p *patient, _ []*host) {
		p.args = []string{"--config", p.write("c.yaml", "control: "+filepath.Join(p.dir, "control.sock")+"\ndevices:\n  - device: soft\ninterfaces:\n  - name: ib0\n    mtu: 5\n")}
		if f := p.named("config_mistake"); !strings.Contains(f.Evidence, "c.yaml:6: interfaces[0].mtu") {
			p.tb.Errorf("the evidence lacks the line: %s", f.Evidence)
		}
		p.write("c.yaml", "control: "+filepath.Join(p.dir, "control.sock")+"\ndevices:\n  - device: soft\ninterfaces:\n  - name: ib0\n")
		p.silent()
	}},
	{"unknown_variable", 0, func(p *patient, _ []*host) {
		p.env = []string{"IPOIBD_UNDERLAI=x"}
		p.named("unknown_variable")
		p.env = nil
		p.silent()
	}},
	{"tun_missing", 0, func(p *patient, _ []*host) {
		p.wrap = mounted("mount -t tmpfs none /dev/net")
		p.named("tun_missing")
	}},
	{"tun_denied", 0, func(p *patient, _ []*host) {
		p.wrap = mounted("mount --bind /dev/net/tun /dev/net/tun && mount -o remount,bind,nodev /dev/net/tun")
		p.named("tun_denied")
	}},
	{"no_net_admin", 0, func(p *patient, _ []*host) {
		p.wrap = []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
		p.named("no_net_admin")
		p.wrap = nil
		p.silent()
	}},
	{"few_files", 0, func(p *patient, _ []*host) {
		p.wrap = []string{"prlimit", "--nofile=32:32"}
		p.named("few_files")
		p.wrap = []string{"prlimit", "--nofile=1024:1024"}
		p.silent()
	}},
	{"memlock_low", 0, func(p *patient, _ []*host) {
		p.args = []string{"--device", "rxe0", "--underlay", ""}
		p.wrap = []string{"prlimit", "--memlock=8388608:8388608", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"}
		p.named("memlock_low", "hca_missing")
		p.wrap = p.wrap[:2]
		if found := p.doctor(); slices.ContainsFunc(found, func(f finding) bool { return f.ID == "memlock_low" }) {
			p.tb.Errorf("with CAP_IPC_LOCK: %+v", found)
		}
	}},
	{"hca_missing", 0, func(p *patient, _ []*host) {
		p.args = []string{"--device", "rxe0", "--underlay", ""}
		p.named("hca_missing")
	}},
	{"underlay_unclear", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1")
		p.Run("ip", "link", "set", "other0", "up")
		p.args = []string{"--underlay", ""}
		if f := p.named("underlay_unclear"); !strings.Contains(f.Evidence, "other0") {
			p.tb.Errorf("the evidence does not name the netdevs: %s", f.Evidence)
		}
		p.args = nil
		p.silent()
	}},
	{"underlay_missing", 0, func(p *patient, _ []*host) {
		p.args = []string{"--underlay", "eth7"}
		p.named("underlay_missing")
	}},
	{"underlay_loopback", 0, func(p *patient, _ []*host) {
		p.args = []string{"--underlay", "lo"}
		p.named("underlay_loopback")
	}},
	{"underlay_down", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "set", nstest.Dev, "down")
		p.cured("underlay_down")
	}},
	{"underlay_no_carrier", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1")
		p.Run("ip", "address", "add", "198.51.100.1/24", "dev", "other0")
		p.Run("ip", "link", "set", "other0", "up")
		p.args = []string{"--underlay", "other0"}
		p.named("underlay_no_carrier")
		p.Run("ip", "link", "set", "other1", "up")
		p.silent()
	}},
	{"underlay_no_address", 0, func(p *patient, _ []*host) {
		p.Run("ip", "address", "flush", "dev", nstest.Dev)
		p.cured("underlay_no_address", "ADDRESS/PREFIX", nstest.IPv4(0)+"/24")
	}},
	{"port_taken", 0, func(p *patient, _ []*host) {
		pid := p.python(bindsPort).Process.Pid
		f := p.named("port_taken")
		if want := fmt.Sprintf("python3 (pid %d)", pid); !strings.Contains(f.Evidence, want) {
			p.tb.Errorf("the evidence lacks %s: %s", want, f.Evidence)
		}
		p.obey(f)
		p.silent()
	}},
	{"name_taken", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "add", ifName, "type", "veth", "peer", "name", "other1")
		if f := p.named("name_taken"); f.Command != "ipoibd run --name ib1" {
			p.tb.Errorf("advice: %s", f.Command)
		}
		p.args = []string{"--name", "ib1"}
		p.silent()
	}},
	{"name_in_use", 0, func(p *patient, _ []*host) {
		other := *p.host
		other.dir = shortDir(p.tb)
		other.start()
		p.named("name_in_use", "port_taken")
		p.args = []string{"--control", filepath.Join(other.dir, "control.sock")}
		p.named("interface_down") // what that daemon says
	}},
	{"address_overlap", 0, func(p *patient, _ []*host) {
		p.args = []string{"--address", "192.0.2.77/25"}
		p.named("address_overlap")
		p.args = []string{"--address", "10.44.0.1/24"}
		p.silent()
	}},
	{"control_unwritable", 0, func(p *patient, _ []*host) {
		p.wrap = mounted("mount -t tmpfs -o ro none " + p.dir)
		p.named("control_unwritable")
		p.wrap = mounted("mount -t tmpfs -o nr_inodes=1 none " + p.dir)
		if f := p.named("control_unwritable"); !strings.Contains(f.Evidence, "full") {
			p.tb.Errorf("a full file system: %s", f.Evidence)
		}
		p.wrap = nil
		p.silent()
	}},
	{"socket_blocked", 0, func(p *patient, _ []*host) {
		p.write("control.sock", "")
		p.cured("socket_blocked")
	}},
	{"socket_garbage", 0, func(p *patient, _ []*host) {
		for _, answer := range []string{"what?", `HTTP/1.1 200 OK\r\n\r\n{}`, `HTTP/1.1 200 OK\r\n\r\n{"schema_version":7}`, `HTTP/1.1 200 OK\r\n\r\n[[[[`} {
			p.python(fmt.Sprintf(answersBad, filepath.Join(p.dir, "control.sock"), answer))
			p.obey(p.named("socket_garbage"))
			p.named("daemon_ended") // it has left its socket
			if err := os.Remove(filepath.Join(p.dir, "control.sock")); err != nil {
				p.tb.Fatal(err)
			}
			p.silent()
		}
	}},
	{"daemon_hangs", 0, func(p *patient, _ []*host) {
		p.python(fmt.Sprintf(answersSlowly, filepath.Join(p.dir, "control.sock")))
		start := time.Now()
		p.named("daemon_hangs")
		p.tb.Logf("a socket that drips: doctor took %v", time.Since(start))
	}},
}

// ofADaemon are set-ups with a daemon, without peers.
var ofADaemon = []setUp{
	{"daemon_ended", 0, func(p *patient, _ []*host) {
		p.join()
		p.daemon.kill()
		p.named("daemon_ended")
		p.start()
		p.waitCarrier()
		p.silent()
	}},
	{"daemon_hangs", 0, func(p *patient, _ []*host) {
		p.join()
		if err := p.daemon.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			p.tb.Fatal(err)
		}
		f := p.named("daemon_hangs")
		if want := fmt.Sprintf("kill -CONT %d", p.daemon.cmd.Process.Pid); f.Command != want {
			p.tb.Errorf("advice %q, want %q", f.Command, want)
		}
		p.obey(f)
		p.silent()
	}},
	{"socket_denied", 0, func(p *patient, _ []*host) {
		if os.Getuid() != 0 || syscall.Setuid(0) != nil {
			p.tb.Fatal("needs root")
		}
		p.join()
		program := p.write("ipoibd", "")
		p.Run("cp", os.Getenv(daemonEnv), program)
		p.Run("chmod", "755", p.dir, program)
		p.wrap = []string{"setpriv", fmt.Sprint("--reuid=", stranger), "--clear-groups", "sh", "-c", `shift; exec ` + program + ` "$@"`, "sh"}
		p.named("socket_denied")
		p.wrap = nil
		p.silent()
	}},
	{"other_version", 0, func(p *patient, _ []*host) {
		other := filepath.Join(p.dir, "ipoibd")
		if out, err := exec.Command("go", "build", "-ldflags", "-X main.commit=older", "-o", other, "ipoibd/cmd/ipoibd").CombinedOutput(); err != nil {
			p.tb.Fatalf("build: %v\n%s", err, out)
		}
		control := filepath.Join(p.dir, "control.sock")
		p.daemon = launch(p.tb, p.Namespace, control, "run", "--underlay", nstest.Dev, "--control", control, "--up", "--address", p.ip4()+"/24")
		if _, err := exec.Command(other, "version").Output(); err != nil {
			p.tb.Fatal(err)
		}
		p.silent()
		p.wrap = []string{"sh", "-c", `shift; exec ` + other + ` "$@"`, "sh"}
		p.named("other_version")
	}},
	{"interface_down", 0, func(p *patient, _ []*host) {
		p.start()
		p.addAddrs(ifName)
		p.cured("interface_down")
	}},
	{"no_address", 0, func(p *patient, _ []*host) {
		p.start("--up")
		p.cured("no_address", "ADDRESS/PREFIX", p.ip4()+"/24")
	}},
	{"device_suspended", 0, func(p *patient, _ []*host) {
		p.join()
		p.daemon.requirePost("/v1/suspend", nil)
		f := p.named("device_suspended")
		p.Run("sh", "-c", strings.Replace(f.Command, "ipoibd", os.Getenv(daemonEnv), 1))
		p.silent()
	}},
	{"device_given_up", 0, func(p *patient, _ []*host) {
		control := filepath.Join(p.dir, "control.sock")
		file := p.write("c.yaml", "control: "+control+"\ndevices:\n  - underlay: "+nstest.Dev+"\n    give_up_after: 1s\ninterfaces:\n  - name: ib0\n    up: true\n    addresses: [10.44.0.1/24]\n")
		p.daemon = launch(p.tb, p.Namespace, control, "run", "--config", file, "--allow-faults")
		p.silent()
		p.daemon.inject(faultRequest{Kind: "unplug"})
		f := p.named("device_given_up")
		p.daemon.inject(faultRequest{Kind: "replug"})
		p.Run("sh", "-c", strings.Replace(f.Command, "ipoibd", os.Getenv(daemonEnv), 1))
		p.silent()
	}},
	{"device_waiting", 0, func(p *patient, _ []*host) {
		p.join("--allow-faults")
		p.daemon.inject(faultRequest{Kind: "unplug"})
		p.named("device_waiting")
		p.daemon.inject(faultRequest{Kind: "replug"})
		p.silent()
	}},
	{"interface_failed", 0, func(p *patient, _ []*host) {
		control := filepath.Join(p.dir, "control.sock")
		file := p.write("c.yaml", "control: "+control+"\ndevices:\n  - underlay: "+nstest.Dev+"\ninterfaces:\n  - name: ib0\n    up: true\n    addresses: [10.44.0.1/24]\n  - name: ib1\n    up: true\n    addresses: [10.45.0.1/24]\n")
		p.daemon = launch(p.tb, p.Namespace, control, "run", "--config", file)
		p.silent()
		p.Run("ip", "link", "delete", "ib1")
		p.named("interface_failed")
	}},
	{"interface_unassigned", 0, func(p *patient, _ []*host) {
		p.start("--up", "--address", "10.44.0.1/24", "--route", "10.0.0.0/8 via 10.99.0.1")
		p.named("interface_unassigned")
		p.Run("ip", "route", "add", "10.99.0.1", "dev", ifName) // removes what is in the way
		p.silent()
	}},
	{"foreign_process", 0, func(p *patient, _ []*host) {
		p.join()
		pid := p.python(hasQueue).Process.Pid
		f := p.named("foreign_process")
		if want := fmt.Sprintf("kill %d", pid); f.Command != want {
			p.tb.Errorf("advice %q, want %q", f.Command, want)
		}
		p.obey(f)
		p.silent()
	}},
	{"underlay_down", 0, func(p *patient, _ []*host) {
		p.join()
		p.Run("ip", "link", "set", nstest.Dev, "down")
		f := p.named("underlay_down")
		if all := p.doctor(); len(all) != 1 {
			p.tb.Errorf("its consequences are reported as well: %+v", all)
		}
		p.obey(f)
		p.silent()
	}},
	{"underlay_missing", 0, func(p *patient, _ []*host) {
		p.join()
		p.Run("ip", "link", "delete", nstest.Dev)
		p.named("underlay_missing")
	}},
	{"underlay_no_address", 0, func(p *patient, _ []*host) {
		p.join()
		p.Run("ip", "address", "flush", "dev", nstest.Dev)
		p.cured("underlay_no_address", "ADDRESS/PREFIX", nstest.IPv4(0)+"/24")
	}},
	{"multicast_off", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "set", nstest.Dev, "multicast", "off")
		p.join()
		p.cured("multicast_off")
	}},
	{"unresolved_peer", 0, func(p *patient, _ []*host) {
		p.join("--peer", "nowhere.invalid")
		p.named("unresolved_peer")
	}},
	{"no_ipv6", 0, func(p *patient, _ []*host) {
		p.Run("ip", "link", "set", nstest.Dev, "mtu", "1300")
		p.start("--up", "--address", "10.44.0.1/24")
		p.cured("no_ipv6")
	}},
	{"no_ebpf", 0, func(p *patient, _ []*host) {
		control := filepath.Join(p.dir, "control.sock")
		drop := "-bpf,-perfmon,-sys_admin"
		p.daemon = await(p.tb, p.Namespace, control, p.Command("setpriv", "--bounding-set="+drop, "--inh-caps="+drop,
			os.Getenv(daemonEnv), "run", "--underlay", nstest.Dev, "--control", control, "--up", "--address", "10.44.0.1/24"))
		if f := p.named("no_ebpf"); f.Severity != "hint" {
			p.tb.Errorf("severity %s, want a hint", f.Severity)
		}
	}},
	{"files_nearly_exhausted", 0, func(p *patient, _ []*host) {
		p.join()
		p.silent()
		p.Run("prlimit", "--pid", fmt.Sprint(p.daemon.cmd.Process.Pid), fmt.Sprintf("--nofile=%d:", p.daemon.status().FDs+1))
		p.cured("files_nearly_exhausted")
	}},
}

// ofTheNetwork are set-ups with other hosts.
var ofTheNetwork = []setUp{
	{"address_overlap", 0, func(p *patient, _ []*host) {
		p.start("--up")
		p.Run("ip", "address", "add", "192.0.2.77/25", "dev", ifName)
		f := p.named("address_overlap")
		p.obey(f)
		p.Run("ip", "address", "add", "10.44.0.1/24", "dev", ifName)
		p.silent()
	}},
	{"firewall_out", 1, func(p *patient, peers []*host) {
		p.join()
		peers[0].join()
		p.waitReaches(peers[0])
		p.nft("table inet f {\n chain o {\n type filter hook output priority 0\n udp dport 4791 drop\n }\n}\n")
		p.keepSending(peers[0])
		p.named("firewall_out")
	}},
	{"firewall_in", 1, func(p *patient, peers []*host) {
		p.join(slowPath) // a fast path bypasses the firewall
		peers[0].join()
		p.waitReaches(peers[0])
		p.nft("table inet f {\n chain i {\n type filter hook input priority 0\n udp dport 4791 drop\n }\n}\n")
		f := p.named("firewall_in")
		if p.reaches(peers[0]) {
			p.tb.Error("the firewall drops nothing")
		}
		p.obey(f)
		p.silent()
		p.waitReaches(peers[0])
	}},
	{"bridge_firewall", 1, func(p *patient, peers []*host) {
		p.start()
		p.bridge()
		p.waitCarrier()
		p.guest("guest0", 100)
		peers[0].join()
		p.waitReaches(peers[0])
		p.nft("table ip filter {\n chain FORWARD {\n type filter hook forward priority 0; policy drop;\n }\n}\n")
		f := p.named("bridge_firewall")
		reached := func() bool { return peers[0].Command("ping", "-n", "-c", "1", "-W", "0.2", guestIP4(100)).Run() == nil }
		if reached() {
			p.tb.Error("the firewall drops nothing")
		}
		p.obey(f)
		p.silent()
		eventually(p.tb, repairLimit, "the guest is reached", reached)
	}},
	{"not_forwarding", 1, func(p *patient, peers []*host) {
		p.join()
		peers[0].join()
		p.waitReaches(peers[0])
		peers[0].Run("ip", "route", "add", "198.51.100.0/24", "via", p.ip4())
		ping := peers[0].Command("ping", "-q", "-i", "0.1", "198.51.100.1")
		if err := ping.Start(); err != nil {
			p.tb.Fatal(err)
		}
		p.tb.Cleanup(func() { _ = ping.Process.Kill(); _ = ping.Wait() })
		p.cured("not_forwarding")
	}},
	{"nat", 1, func(p *patient, peers []*host) {
		p.join("--peer", nstest.IPv4(1), "--peer", "192.0.2.99")
		peers[0].nft("table inet f {\n chain p {\n type filter hook postrouting priority 0\n udp dport 4791 ip saddr set 192.0.2.99\n }\n}\n")
		peers[0].join("--peer", nstest.IPv4(0))
		peers[0].keepSending(p.host)
		p.named("nat")
	}},
	{"pkey_mismatch", 1, func(p *patient, peers []*host) {
		p.join()
		peers[0].join("--pkey", "0x8001")
		peers[0].keepSending(p.host)
		if f := p.named("pkey_mismatch"); !strings.Contains(f.Evidence, "0xffff") {
			p.tb.Errorf("the evidence lacks the P_Key of this host: %s", f.Evidence)
		}
		peers[0].daemon.stop()
		peers[0].Run("ip", "link", "delete", ifName)
		peers[0].join()
		p.waitReaches(peers[0])
		p.silent()
	}},
	{"one_sided_peer", 1, func(p *patient, peers []*host) {
		p.join()
		peers[0].join("--peer", nstest.IPv4(0))
		peers[0].keepSending(p.host)
		p.named("one_sided_peer")
		p.daemon.stop()
		p.start("--peer", nstest.IPv4(1))
		p.waitReaches(peers[0])
		p.silent()
	}},
	{"unknown_peer", 2, func(p *patient, peers []*host) {
		p.join("--peer", nstest.IPv4(1), "--known-peers-only", slowPath)
		peers[0].join("--peer", nstest.IPv4(0))
		p.waitReaches(peers[0])
		p.silent()
		peers[1].join("--peer", nstest.IPv4(0))
		peers[1].keepSending(p.host)
		p.named("unknown_peer")
	}},
	{"peer_refuses", 1, func(p *patient, peers []*host) {
		p.join("--peer", nstest.IPv4(1))
		p.keepSending(peers[0])
		p.named("peer_refuses")
		peers[0].join("--peer", nstest.IPv4(0))
		p.waitReaches(peers[0])
		p.silent()
	}},
	{"family_mismatch", 1, func(p *patient, _ []*host) {
		p.join("--peer", nstest.IPv4(1), "--gid", nstest.IPv6(0))
		p.named("family_mismatch")
	}},
	{"duplicate_address", 1, func(p *patient, peers []*host) {
		p.join()
		b := peers[0]
		b.Run("ip", "addr", "add", nstest.IPv4(0)+"/24", "dev", nstest.Dev)
		_ = b.Command("ping", "-c", "1", "-W", "0.3", "-I", nstest.IPv4(0), nstest.IPv4(77)).Run() // sends an ARP request
		p.named("duplicate_address")
	}},
	{"address_duplicate", 1, func(p *patient, peers []*host) {
		p.join()
		peers[0].join()
		p.waitReaches(peers[0])
		p.Run("ip", "address", "add", peers[0].ip6()+"/64", "dev", ifName)
		p.cured("address_duplicate")
	}},
	{"path_mtu", 0, func(p *patient, _ []*host) {
		r := newRoute(p.tb.(*testing.T), false, 1300)
		r.join()
		a := &patient{host: r.a}
		a.sends(r.b.ip4(), 1444) // a router answers that it is too large
		f := a.named("path_mtu")
		if !strings.Contains(f.Evidence, r.addr[1]) {
			p.tb.Errorf("the evidence does not name the peer: %s", f.Evidence)
		}
		if f.Command != "ipoibd ping --sweep "+r.b.ip4() {
			p.tb.Errorf("the command is %q", f.Command)
		}
		out, err := a.ipoibd("ping", "--sweep", r.b.ip4(), "--control", filepath.Join(a.dir, "control.sock")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "set it to 1244") {
			p.tb.Errorf("the sweep does not find the largest packet: %v\n%s", err, out)
		}
		a.Run("ip", "link", "set", ifName, "mtu", "1244")
		a.named("no_ipv6") // this is all that is left, because the path is so narrow
		if !a.sends(r.b.ip4(), 1244) {
			p.tb.Error("the MTU is still too large for the path")
		}
	}},
}
