package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/report"
)

const (
	self = "/proc/self/exe"
	// variable tells the second start what the first one has done. The name does not begin like
	// the variables of the flags.
	variable = "_IPOIBD_SANDBOX"
	// outside can be read by any process, but not in a sandbox.
	outside = "/"
)

// Sandbox is what confines this process.
type Sandbox struct {
	Policy  Policy
	ABI     int      // of Landlock; 0: access to files is not restricted
	Missing []string // what the kernel does not support, or does not allow; empty: nothing
	Carried Carried

	seccomp bool
}

// Carried is what the first start prepares with all its privileges, and leaves to the second one.
type Carried struct{ Programs, FastPath Loaded }

// Loaded are the descriptors of programs and their maps, which stay open.
type Loaded struct {
	Descriptors []int
	Err         string // why there are none
}

// Enter calls prepare and then confines this process to a policy. If root calls it, the process
// continues as the user that as returns; nil: as root. On success it executes the program again, with
// the same arguments and environment, and returns only there: the sandbox that the first start has
// entered, whose policy applies. So callers read their options before, and have neither
// threads that matter nor devices. What the kernel does not support is missing in the result.
// Errors: a system call that should always work fails, the policy includes a directory of other
// programs, or the sandbox does not hold.
func Enter(p Policy, as func() (*User, error), prepare func() Carried) (*Sandbox, error) {
	text, second := os.LookupEnv(variable)
	if !second {
		return nil, first(p, as, prepare)
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	var s Sandbox
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", variable, err)
	}
	if err := s.holds(); err != nil {
		return nil, fmt.Errorf("environment variable %s says that the process is in a sandbox, but %w", variable, err)
	}
	if err := s.Policy.restrictCalls(); err != nil {
		s.Missing = append(s.Missing, fmt.Sprintf("system calls are not restricted: %v", err))
	} else {
		s.seccomp = true
	}
	return &s, nil
}

// first is the first half of Enter. What it does applies to the thread that calls execve, whose
// credentials the program gets.
func first(p Policy, as func() (*User, error), prepare func() Carried) error {
	runtime.LockOSThread() // not unlocked: after an error, the thread must not be used
	if err := p.narrow(); err != nil {
		return fmt.Errorf("%w; --sandbox=false runs without a sandbox", err)
	}
	s := Sandbox{Policy: p}
	// Of the descriptors that it was started with, the daemon needs only the standard ones.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		s.Missing = append(s.Missing,
			fmt.Sprintf("descriptors that the daemon was started with stay open (close_range: %v)", err))
	}
	s.Carried = prepare()
	if slices.Contains(p.Read, netnsDir) { // runtimes create it with the first namespace
		_ = os.Mkdir(netnsDir, 0o755)
	}
	s.Missing = append(s.Missing, s.Policy.keepDevices()...)
	if os.Geteuid() == 0 {
		user, err := as()
		if err == nil && user != nil {
			if err = user.adopt(p); err == nil {
				err = user.become()
			}
		}
		if err != nil {
			return fmt.Errorf("cannot drop root: %w; use --user root to keep it", err)
		}
	}
	missing, err := drop(p.Capabilities)
	if err != nil {
		return fmt.Errorf("enter the sandbox: %w; --sandbox=false runs without one", err)
	}
	if missing != "" {
		s.Missing = append(s.Missing, missing)
	}
	p.makeDirs()
	program := path() // as the user sees it
	abi, open := s.Policy.restrictFiles()
	s.ABI, s.Missing = abi, append(s.Missing, open...)
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	for _, fd := range slices.Concat(s.Carried.Programs.Descriptors, s.Carried.FastPath.Descriptors) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d across execve: %w", fd, err)
		}
	}
	err = unix.Exec(program, os.Args, append(os.Environ(), variable+"="+string(text)))
	return fmt.Errorf("execute %s again in the sandbox: %w; --sandbox=false runs without one", program, err)
}

// path returns the path of this program, from which execve makes the name of the process, or the
// kernel's link to it if another file is there now.
func path() string {
	if name, err := os.Readlink(self); err == nil {
		here, err := os.Stat(name)
		this, errThis := os.Stat(self)
		if err == nil && errThis == nil && os.SameFile(here, this) {
			return name
		}
	}
	return self
}

// holds returns an error if this process is not in the sandbox, although the variable says so.
func (s *Sandbox) holds() error {
	state, err := current()
	if err != nil {
		return err
	}
	if !state.noNewPrivs {
		return errors.New("it could gain privileges")
	}
	for _, c := range state.held {
		if !slices.Contains(s.Policy.Capabilities, c) {
			return fmt.Errorf("it has %s", name(c))
		}
	}
	if s.ABI == 0 {
		return nil
	}
	root, err := os.Open(outside)
	if err == nil {
		root.Close()
		return fmt.Errorf("it can read %s", outside)
	}
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Report describes the privileges of this process. A nil sandbox is off.
func (s *Sandbox) Report() (report.Sandbox, error) {
	state, err := current()
	if err != nil {
		return report.Sandbox{}, err
	}
	r := report.Sandbox{Capabilities: []string{}, NoNewPrivs: state.noNewPrivs}
	for _, c := range state.held {
		r.Capabilities = append(r.Capabilities, name(c))
	}
	if s != nil {
		r.On, r.Landlock, r.Seccomp, r.Missing = true, s.ABI, s.seccomp, s.Missing
	}
	return r, nil
}

// state is what the kernel says about this process.
type state struct {
	held       []capability.Cap // permitted
	noNewPrivs bool
}

func current() (s state, err error) {
	caps, err := capability.NewPid2(0)
	if err != nil {
		return s, err
	}
	if err := caps.Load(); err != nil {
		return s, fmt.Errorf("read capabilities: %w", err)
	}
	flag, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return state{held(caps, capability.PERMITTED), flag == 1}, os.NewSyscallError("prctl PR_GET_NO_NEW_PRIVS", err)
}
