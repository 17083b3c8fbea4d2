package daemon

import (
	"context"
	"fmt"
	"strings"
)

// alive returns nil once the goroutine that owns each device and interface has answered, or the
// first that has not when ctx ends. An interface that has failed counts as alive: its end was
// reported, and the others work.
func (d *daemon) alive(ctx context.Context) error {
	devices, ifaces := d.lists()
	for _, dev := range devices {
		if err := dev.Answers(ctx); err != nil {
			return fmt.Errorf("device %s: %w", dev.name, err)
		}
	}
	for _, f := range ifaces {
		if err := f.Answers(ctx); err != nil {
			return fmt.Errorf("interface %s: %w", f.Name(), err)
		}
	}
	return nil
}

// maxSummary bounds how many interfaces a summary names, because systemctl shows it in one line.
const maxSummary = 8

// summary describes the interfaces in one line: "ib0 up; ib1 waiting (device), no carrier".
func (d *daemon) summary() string {
	var all []string
	_, ifaces := d.lists()
	for _, f := range ifaces[:min(len(ifaces), maxSummary)] {
		all = append(all, f.Summary())
	}
	if more := len(ifaces) - maxSummary; more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, "; ")
}
