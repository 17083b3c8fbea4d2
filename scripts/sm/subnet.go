package sm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ipoibd/hca"
)

// DefaultPartitions makes all ports full members of the default partition, which is open to IPoIB: MTU 2048, 40 Gbit/s.
const DefaultPartitions = "Default=0x7fff, ipoib, rate=7, mtu=4, sl=0, defmember=full : ALL=full, ALL_SWITCHES=full, SELF=full;\n"

// options are OpenSM's, for tests: it looks for changes each second, and notices the end of another subnet manager
// within half a second.
const options = "sweep_interval 1\nsminfo_polling_timeout 200\npolling_retry_number 2\nforce_log_flush TRUE\n"

// upLimit bounds how long the subnet takes to come up: far more than the second that it takes on an idle machine.
const upLimit = time.Minute

// Spec describes a subnet.
type Spec struct {
	Hosts      int    // at most MaxHosts
	Others     int    // further ports, which only the subnet manager knows: they follow those of the hosts, and have no wire
	Partitions string // OpenSM's partitions.conf; empty means DefaultPartitions
	Options    string // more lines of OpenSM's options, such as "lmc 1"
}

// Subnet is a running subnet. Its methods fail the test.
type Subnet struct {
	*Switch
	tb      testing.TB
	dir     string
	base    string // of the names of ibsim's sockets
	console io.Writer
	ibsim   *program
	opensm  *program
}

// program is a running program.
type program struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan struct{}
}

// bases numbers the subnets of this process, whose names would otherwise collide.
var bases atomic.Uint32

// library is the file by which OpenSM runs on ibsim, preloaded.
const library = "/usr/lib/*/umad2sim/libumad2sim.so"

// Missing returns what this machine lacks to run a subnet, or nil.
func Missing() (err error) {
	for _, p := range []struct{ name, pkg string }{
		{"ibsim", "ibsim-utils"}, {"opensm", "opensm"}, {"saquery", "infiniband-diags"},
	} {
		if _, lookErr := exec.LookPath(p.name); lookErr != nil {
			err = errors.Join(err, fmt.Errorf("%s is missing (Debian package %s)", p.name, p.pkg))
		}
	}
	if found, _ := filepath.Glob(library); len(found) == 0 {
		err = errors.Join(err, errors.New("libumad2sim.so is missing (Debian package libumad2sim0)"))
	}
	return err
}

// Start starts a subnet, which ends with the test, and waits until all ports are active. If the machine lacks
// a program, the test fails with CI=true in the environment, and is skipped otherwise.
func Start(tb testing.TB, spec Spec) *Subnet {
	tb.Helper()
	if testing.Short() {
		tb.Skip("it runs OpenSM")
	}
	if missing := Missing(); missing != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(missing)
		}
		tb.Skip(missing)
	}
	if spec.Hosts > MaxHosts {
		tb.Fatalf("%d hosts, want at most %d", spec.Hosts, MaxHosts)
	}
	n := bases.Add(1)
	s := &Subnet{tb: tb, dir: tb.TempDir(), base: fmt.Sprintf("ipoibd-sm-%d-%d", os.Getpid(), n)}
	s.write("topology", topology(firstPort-1+spec.Hosts+spec.Others))
	s.write("options", options+spec.Options)
	if spec.Partitions == "" {
		spec.Partitions = DefaultPartitions
	}
	s.write("partitions", spec.Partitions)
	s.startSim()
	s.startSM()
	s.startSwitch(uint32(os.Getpid())<<8|n*16, spec.Hosts)
	for i := range spec.Hosts {
		s.WaitState(i, hca.PortActive)
	}
	return s
}

func (s *Subnet) write(name, text string) {
	s.tb.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		s.tb.Fatal(err)
	}
}

// run starts a program in the subnet's folder.
func (s *Subnet) run(cmd *exec.Cmd) *program {
	s.tb.Helper()
	p := &program{cmd: cmd, exited: make(chan struct{})}
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), append(cmd.Env, "IBSIM_SOCKNAME="+s.base)...)
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.tb.Fatalf("start %s: %v", cmd.Path, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p
}

// kill ends a program, whose output is complete afterwards.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// over reports whether the program has exited, with output that is complete.
func (p *program) over() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// startSim starts ibsim. Without a console it would end at once, or spin.
func (s *Subnet) startSim() {
	s.tb.Helper()
	cmd := exec.Command("ibsim", "-s", "-f", "out", "topology")
	console, err := cmd.StdinPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	s.console = console
	s.ibsim = s.run(cmd)
	s.tb.Cleanup(func() {
		s.ibsim.kill()
		if s.tb.Failed() {
			s.tb.Logf("ibsim:\n%s", tail(s.ibsim.output.Bytes()))
		}
	})
}

// startSM starts OpenSM, with more arguments.
func (s *Subnet) startSM(more ...string) {
	s.tb.Helper()
	s.opensm = s.startSMOn(smPort, more...)
}

// startSMOn starts an OpenSM on the node of a port.
func (s *Subnet) startSMOn(port int, more ...string) *program {
	s.tb.Helper()
	for end := time.Now().Add(upLimit); !s.listens(); time.Sleep(pollInterval) {
		if time.Now().After(end) {
			s.tb.Fatalf("ibsim does not listen within %v", upLimit)
		}
	}
	args := []string{
		"--log_file", s.logOf(port), "--Pconfig", filepath.Join(s.dir, "partitions"),
		"--config", filepath.Join(s.dir, "options"), "--erase_log_file", "--priority", "10", "--guid", fmt.Sprintf("%#x", guid(port)+1),
	}
	cmd := exec.Command("opensm", append(args, more...)...)
	cmd.Env = append(onSim(port), "OSM_TMP_DIR="+s.dir+"/", "OSM_CACHE_DIR="+s.dir+"/")
	p := s.run(cmd)
	s.tb.Cleanup(func() {
		p.kill()
		if s.tb.Failed() {
			log, _ := os.ReadFile(s.logOf(port))
			s.tb.Logf("OpenSM on port %d:\n%s%s", port, tail(p.output.Bytes()), tail(log))
		}
	})
	return p
}

// logOf returns the log of the OpenSM on the node of a port.
func (s *Subnet) logOf(port int) string {
	return filepath.Join(s.dir, fmt.Sprintf("opensm%d.log", port))
}

// MoveSM kills OpenSM and starts another one on another node. Hosts see what they see when a standby takes over: the
// subnet manager has another LID, and knows no members. MoveSM returns once the subnet is up. (A standby itself is not
// used: OpenSM waits forever for the answer to a packet that ibsim has lost, because there is no kernel to report a
// time-out, and a standby that takes over often does.)
func (s *Subnet) MoveSM() {
	s.tb.Helper()
	s.detach(s.opensm)
	s.opensm = s.startSMOn(toolPort)
	s.waitUp(toolPort)
}

// waitUp waits until the OpenSM on a port has configured all ports.
func (s *Subnet) waitUp(port int) {
	s.tb.Helper()
	s.eventually(fmt.Sprintf("the OpenSM on port %d has the subnet up", port), func() bool {
		log, _ := os.ReadFile(s.logOf(port))
		return bytes.Contains(log, []byte("SUBNET UP"))
	})
}

// detach kills a program that runs on ibsim and disconnects it there. ibsim would lose the next packet to it otherwise.
// The number of its connection is read before: once it is dead, the loss of a packet to it ends the connection, too. detach
// returns once ibsim has done that: it might give a program that connects the same number.
func (s *Subnet) detach(p *program) {
	s.tb.Helper()
	client := regexp.MustCompile(fmt.Sprintf(`Client (\d+): pid %d `, p.cmd.Process.Pid))
	s.command("Attached")
	found := s.awaitPrint("its clients", client)
	p.kill()
	s.command("X %s", found[1])
	done := fmt.Sprintf("# disconnected %d", p.cmd.Process.Pid)
	s.command("%s", done) // a comment, which it repeats
	s.awaitPrint("that it has disconnected a client", regexp.MustCompile(done))
}

// awaitPrint waits until ibsim has printed what matches.
func (s *Subnet) awaitPrint(what string, match *regexp.Regexp) (found []string) {
	s.tb.Helper()
	s.eventually("ibsim prints "+what, func() bool {
		output, _ := os.ReadFile(filepath.Join(s.dir, "out"))
		found = match.FindStringSubmatch(string(output))
		return found != nil
	})
	return found
}

// onSim returns the variables by which a program runs on ibsim, as the node of a port.
func onSim(port int) []string {
	libraries, _ := filepath.Glob(library)
	return []string{"SIM_HOST=" + nodeID(port), "LD_PRELOAD=" + libraries[0]}
}

// listens reports whether ibsim has its socket for clients.
func (s *Subnet) listens() bool {
	text, err := os.ReadFile("/proc/net/unix")
	return err == nil && strings.Contains(string(text), "@"+s.base+":ctl")
}

func (s *Subnet) startSwitch(number uint32, hosts int) {
	s.tb.Helper()
	var nodes []string
	for i := range hosts {
		nodes = append(nodes, nodeID(firstPort+i))
	}
	var err error
	if s.Switch, err = newSwitch(s.base, number, nodeID(toolPort), nodes); err != nil {
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			s.tb.Errorf("the switch: %v", err)
		}
	})
}

// maxLog bounds the part of a log that is shown, in bytes.
const maxLog = 8 << 10

func tail(text []byte) []byte { return text[max(0, len(text)-maxLog):] }

// GUID returns the GUID of a host's port, which does not depend on the subnet.
func GUID(i int) uint64 { return guid(firstPort+i) + 1 }

// GUID returns the GUID of a host's port.
func (s *Subnet) GUID(i int) uint64 { return GUID(i) }

// GID returns the GID of a host's port.
func (s *Subnet) GID(i int) hca.GID { return portGID(s.Port(i).Prefix, s.GUID(i)) }

// WaitState waits until a host has been informed that its port is in a state.
func (s *Subnet) WaitState(i int, want hca.PortState) {
	s.tb.Helper()
	s.eventually(fmt.Sprintf("host %d: port %v", i, want), func() bool { return s.Port(i).State == want })
}

// WaitMembers waits until exactly these hosts are in the switch's table for a group.
func (s *Subnet) WaitMembers(mlid uint16, want ...int) {
	s.tb.Helper()
	s.eventually(fmt.Sprintf("group %#x: members %v", mlid, want), func() bool { return fmt.Sprint(s.Members(mlid)) == fmt.Sprint(want) })
}

func (s *Subnet) eventually(what string, ok func() bool) {
	s.tb.Helper()
	for end := time.Now().Add(upLimit); !ok(); time.Sleep(pollInterval / 5) {
		if err := s.Err(); err != nil {
			s.tb.Fatalf("%s: %v", what, err)
		}
		if time.Now().After(end) {
			s.tb.Fatalf("%s: not within %v", what, upLimit)
		}
	}
}

// Join makes a host's port a full member of a group, and creates the group if it does not exist and has a Q_Key. It
// returns the group as the SA knows it.
func (s *Subnet) Join(i int, g Group) Group {
	s.tb.Helper()
	out, err := s.group(i, joinRequest(methodSet, &g, s.GID(i)))
	if err != nil {
		s.tb.Fatal(err)
	}
	return out
}

// Group returns a group as the SA knows it, asked by host 0.
func (s *Subnet) Group(mgid hca.GID) Group {
	s.tb.Helper()
	out, err := s.group(0, groupRequest(mgid))
	if err != nil {
		s.tb.Fatal(err)
	}
	return out
}

// WaitSM waits until the SA answers, for example after RestartSM.
func (s *Subnet) WaitSM() {
	s.tb.Helper()
	s.eventually("the SA answers", func() bool {
		_, err := s.group(0, groupRequest(hca.GID{}))
		return errors.As(err, new(statusError)) // there is no such group
	})
}

// Leave ends the membership of a host's port.
func (s *Subnet) Leave(i int, g Group) {
	s.tb.Helper()
	if _, err := s.group(i, joinRequest(methodDelete, &g, s.GID(i))); err != nil {
		s.tb.Fatal(err)
	}
}

// command gives ibsim a command.
func (s *Subnet) command(format string, args ...any) {
	s.tb.Helper()
	if _, err := fmt.Fprintf(s.console, format+"\n", args...); err != nil {
		s.tb.Fatalf("command ibsim: %v", err)
	}
}

// Unlink pulls the cable of a host's port, as the subnet manager sees it.
func (s *Subnet) Unlink(i int) { s.command("Unlink %q[1]", nodeID(firstPort+i)) }

// Relink undoes Unlink.
func (s *Subnet) Relink(i int) { s.command("ReLink %q[1]", nodeID(firstPort+i)) }

// ChangeLID changes the LID of a host's port, and returns once the switch has seen that. OpenSM, which restores the old LID
// within about a second, is stopped meanwhile: it might be faster than the switch.
func (s *Subnet) ChangeLID(i int, lid uint16) {
	s.tb.Helper()
	s.signalSM(syscall.SIGSTOP)
	s.eventually("OpenSM has stopped", s.opensm.stopped)
	s.setLID(i, lid)
	s.signalSM(syscall.SIGCONT)
}

func (s *Subnet) signalSM(sig os.Signal) {
	s.tb.Helper()
	if err := s.opensm.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("send %v to OpenSM: %v", sig, err)
	}
}

// stopped reports whether all threads of the program are stopped by a signal.
func (p *program) stopped() bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, name := range stats {
		if stat, _ := os.ReadFile(name); !bytes.Contains(stat, []byte(") T ")) {
			return false
		}
	}
	return true
}

// setLID changes the LID of a host's port, and returns once the switch has seen that.
func (s *Subnet) setLID(i int, lid uint16) {
	s.tb.Helper()
	s.command("Baselid %q[1] %d", nodeID(firstPort+i), lid)
	s.eventually(fmt.Sprintf("host %d has LID %d", i, lid), func() bool { return s.Port(i).LID == lid })
}

// RestartSM kills OpenSM and starts it again. It has then forgotten all memberships and, if fresh, all LIDs.
func (s *Subnet) RestartSM(fresh bool) {
	s.tb.Helper()
	s.detach(s.opensm)
	if !fresh {
		s.startSM()
		return
	}
	s.forgetLIDs()
	s.startSM("--reassign_lids")
}

// forgetLIDs removes OpenSM's memory of LIDs, which must not run.
func (s *Subnet) forgetLIDs() {
	s.tb.Helper()
	if err := os.Remove(filepath.Join(s.dir, "guid2lid")); err != nil {
		s.tb.Fatal(err)
	}
}

// MoveLID gives a host's port another LID for good, and restarts OpenSM without its memory: it then leaves the ports the
// LIDs that they have, and has forgotten all memberships. MoveLID returns once it answers.
func (s *Subnet) MoveLID(i int, lid uint16) {
	s.tb.Helper()
	s.detach(s.opensm)
	s.forgetLIDs()
	s.setLID(i, lid)
	s.startSM()
	s.WaitSM()
}
