package infiniband

import (
	"slices"
	"strings"
	"testing"

	"ipoibd/scripts/vm/guest"
)

// rdmavtsWarning is a warning of Linux 6.1 about rdmavt itself: it copies the request of a UD queue pair to a field that
// is declared shorter, and to the union around it (rvt_post_one_wr). The first packet of any such HCA causes it.
const rdmavtsWarning = `memcpy: detected field-spanning write (size 80) of single field "&wqe->wr" at drivers/infiniband/sw/rdmavt/qp.c`

// The lines around a kernel's report of an error, and the beginnings of those that have no such lines.
const (
	reportBegins = "[ cut here ]"
	reportEnds   = "[ end trace "
)

var errorMarks = []string{"WARNING:", "BUG:", "Call Trace:", "refcount_t:", "unregister_netdevice: waiting for"}

// kernelErrors returns the reports of errors in a kernel's log, except for rdmavt's warning: each with its lines, or the
// line alone.
func kernelErrors(log string) (errors []string) {
	var report []string // its lines so far
	for line := range strings.Lines(log) {
		isError := slices.ContainsFunc(errorMarks, func(mark string) bool { return strings.Contains(line, mark) })
		switch {
		case strings.Contains(line, reportBegins):
			report = []string{line}
		case report == nil && isError:
			errors = append(errors, line)
		case report != nil:
			report = append(report, line)
			if strings.Contains(line, reportEnds) {
				if !strings.Contains(report[1], rdmavtsWarning) {
					errors = append(errors, strings.Join(report, ""))
				}
				report = nil
			}
		}
	}
	if report != nil { // it never ended
		errors = append(errors, strings.Join(report, ""))
	}
	return errors
}

// requireQuietKernel fails the test if the kernel of a guest has reported an error of its own.
func requireQuietKernel(t *testing.T, g *guest.Guest) {
	t.Helper()
	for _, e := range kernelErrors(g.Run("dmesg")) {
		t.Errorf("the kernel reports:\n%s", e)
	}
}

func TestKernelErrors(t *testing.T) {
	const (
		known = "[ 5.6] ------------[ cut here ]------------\n[ 5.6] " + rdmavtsWarning + ":2041 (size 40)\n" +
			"[ 5.6] WARNING: CPU: 0 PID: 47 at drivers/infiniband/sw/rdmavt/qp.c:2041\n[ 5.6] Call Trace:\n[ 5.6] ---[ end trace 0 ]---\n"
		other = "[ 6.0] ------------[ cut here ]------------\n[ 6.0] WARNING: CPU: 0 at kernel/workqueue.c\n[ 6.0] ---[ end trace 0 ]---\n"
		oops  = "[ 7.0] BUG: kernel NULL pointer dereference\n"
		quiet = "[ 1.0] ibwire: ibwire0: Registration with rdmavt done.\n"
	)
	for log, want := range map[string][]string{
		"":                            nil,
		quiet + known + quiet:         nil,
		known + other + quiet + known: {other},
		quiet + oops + known:          {oops},
		known[:len(known)/2]:          {known[:len(known)/2]},
		known + other + oops + other:  {other, oops, other},
	} {
		if got := kernelErrors(log); !slices.Equal(got, want) {
			t.Errorf("%q, want %q, in\n%s", got, want, log)
		}
	}
}
