package docker

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// pod is three containers in one network namespace. A container that owns the namespace has
// the pod's name.
type pod struct {
	*engine
	t       *testing.T
	name    string
	address string // of ib0
	sidecar string // name of the present sidecar
	started int    // number of sidecars so far
}

// newPod starts a pod. The arguments are those that give its first container a network.
func (e *engine) newPod(t *testing.T, name, address string, network ...string) *pod {
	t.Helper()
	e = e.in(t)
	p := &pod{engine: e, t: t, name: name, address: address}
	sleep := func(name string, network ...string) {
		args := append([]string{"run", "--detach", "--stop-timeout", "0", "--name", name}, network...) // sleep ignores SIGTERM
		e.do(append(args, appImage, "sleep", "infinity")...)
	}
	sleep(name, network...)
	sleep(p.app(), "--network", "container:"+name)
	p.create(staticImage)
	e.do("start", p.sidecar)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", p.sidecar, e.logs(p.sidecar))
		}
		_ = e.try("rm", "--force", p.sidecar, p.app())
		_ = e.try("rm", "--force", name)
	})
	return p
}

// app is the name of the application's container.
func (p *pod) app() string { return p.name + "-app" }

// control is the volume with the directory of the control socket, which no other container of the pod
// should have.
func (p *pod) control() string { return p.name + "-control" }

// create creates the next sidecar from an image, with the flags of README's example. It does not
// start it. The daemon's settings come in turn from its arguments and from its environment.
func (p *pod) create(image string) {
	p.t.Helper()
	p.started++
	p.sidecar = fmt.Sprintf("%s-ipoibd%d", p.name, p.started)
	settings := []string{image, "run", "--address", p.address + "/24", "--up"}
	if p.started%2 == 0 {
		settings = []string{"--env", "IPOIBD_ADDRESS=" + p.address + "/24", "--env", "IPOIBD_UP=true", image}
	}
	args := append([]string{"create", "--name", p.sidecar, "--network", "container:" + p.name, "--volume", p.control() + ":/run/ipoibd"}, readmeFlags(p.t)...)
	p.do(append(args, settings...)...)
}

// inApp runs a program in the application's container.
func (p *pod) inApp(args ...string) string {
	p.t.Helper()
	return p.do(append([]string{"exec", p.app()}, args...)...)
}

// reaches reports whether the application gets an answer from another pod.
func (p *pod) reaches(other *pod) bool {
	return p.try("exec", p.app(), "ping", "-n", "-c", "1", "-W", "0.2", other.address) == nil
}

// waitReaches waits until the applications of two pods reach each other.
func (p *pod) waitReaches(other *pod) {
	p.t.Helper()
	details := func() string { return p.logs(p.sidecar) + other.logs(other.sidecar) }
	eventually(p.t, "the pods reach each other", func() bool { return p.reaches(other) && other.reaches(p) }, details)
}

// pid is the process ID of a container's first process in the box.
func (p *pod) pid(container string) string {
	p.t.Helper()
	return p.do("inspect", "--format", "{{.State.Pid}}", container)
}

// stream is a TCP connection of iperf3 between two applications.
type stream struct {
	from *pod
	port string // of this end, which identifies the connection
}

// streamRate is low enough for two shared processors to carry it and still run engines.
const streamRate = "20M"

// streamPort is iperf3's default, and measurePort that of measurements. A server accepts one client
// at a time, and refuses the next one for a moment.
const streamPort, measurePort = "5201", "5202"

// serve starts iperf3's server in the application's container.
func (p *pod) serve(port string, args ...string) {
	p.t.Helper()
	p.do(append([]string{"exec", "--detach", p.app(), "iperf3", "--server", "--port", port}, args...)...)
	eventually(p.t, "iperf3 listens", func() bool { return p.listens(port) }, nil)
}

// listens reports whether a program listens on a port in the pod.
func (p *pod) listens(port string) bool {
	p.t.Helper()
	return strings.Contains(p.inApp("ss", "-Hltn", "sport = "+port), port)
}

// stream starts a connection to a pod that serves. It lasts for a day, or until one of the
// applications ends.
func (p *pod) stream(to *pod) *stream {
	p.t.Helper()
	p.do("exec", "--detach", p.app(), "iperf3", "--client", to.address, "--time", "86400", "--bitrate", streamRate, "--interval", "0")
	s := &stream{from: p}
	eventually(p.t, "iperf3 sends", func() bool {
		for port, acked := range p.connections() {
			if acked > 1<<20 { // the control connection stays small
				s.port = port
			}
		}
		return s.port != ""
	}, nil)
	return s
}

var connection = regexp.MustCompile(`(?m)^ESTAB\s+\d+\s+\d+\s+\S+:(\d+)\s.*\sbytes_acked:(\d+)`)

// connections returns how many bytes of each connection to iperf3's port the other end has
// acknowledged, by the port of this end.
func (p *pod) connections() map[string]uint64 {
	p.t.Helper()
	list := map[string]uint64{}
	for _, m := range connection.FindAllStringSubmatch(p.inApp("ss", "-HOtin", "dport = 5201"), -1) {
		n, err := strconv.ParseUint(m[2], 10, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		list[m[1]] = n
	}
	return list
}

// requireMoves waits until the same connection carries data.
func (s *stream) requireMoves(after string) {
	s.from.t.Helper()
	before, ok := s.from.connections()[s.port]
	eventually(s.from.t, "the connection carries data after "+after, func() bool {
		now, still := s.from.connections()[s.port]
		if !ok || !still {
			s.from.t.Fatalf("the TCP connection is gone after %s", after)
		}
		return now > before
	}, nil)
}

// throughput measures a TCP connection to a pod, in Mbit/s. It returns once the server has ended, because the next one
// could not listen beside it.
func (p *pod) throughput(to *pod, more ...string) float64 {
	p.t.Helper()
	var result struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	to.serve(measurePort, "--one-off")
	out := p.inApp(append([]string{"iperf3", "--client", to.address, "--port", measurePort, "--time", "2", "--json"}, more...)...)
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		p.t.Fatalf("iperf3: %v\n%s", err, out)
	}
	eventually(p.t, "iperf3 has ended", func() bool { return !to.listens(measurePort) }, nil)
	return result.End.Received.BitsPerSecond / 1e6
}

// readmeExample returns the commands of README's section about the sidecar, without their
// indentation.
func readmeExample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Sidecar\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var script strings.Builder
	for line := range strings.Lines(section) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			script.WriteString(command)
		}
	}
	return script.String()
}

var sidecarFlags = regexp.MustCompile(`(?s)--network container:pod\$i (.*?)ipoibd run `)

// readmeFlags returns the flags with which README's example starts a sidecar.
func readmeFlags(t *testing.T) []string {
	t.Helper()
	m := sidecarFlags.FindStringSubmatch(readmeExample(t))
	if m == nil {
		t.Fatal("README.md shows no flags of a sidecar: does the expression still match?")
	}
	return strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
}

// newHosts returns two machines on one Ethernet segment, each with Docker and the images. Their pods
// are on the same segment, by macvlans.
func newHosts(t *testing.T) (a, b *engine) {
	t.Helper()
	segment := nstest.NewSegment(t, 1500)
	a, b = newDocker(t, segment.Host(0)), newDocker(t, segment.Host(1))
	makeImages(t, a)
	copyImages(a, b, staticImage, debianImage, appImage)
	for _, e := range []*engine{a, b} {
		e.do("network", "create", "--driver", "macvlan", "--opt", "parent="+nstest.Dev, "--subnet", "192.0.2.0/24", "segment")
	}
	return a, b
}

// newPods starts a pod on each of the hosts and waits until they reach each other.
func newPods(t *testing.T, hostA, hostB *engine) (a, b *pod) {
	t.Helper()
	a = hostA.newPod(t, "pod1", "10.9.0.1", "--network", "segment", "--ip", nstest.IPv4(10))
	b = hostB.newPod(t, "pod2", "10.9.0.2", "--network", "segment", "--ip", nstest.IPv4(11))
	a.waitReaches(b)
	return a, b
}
