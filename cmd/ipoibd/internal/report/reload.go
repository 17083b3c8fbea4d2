package report

import (
	"errors"
	"fmt"
	"strings"
)

// Reload is what a change of the configuration has done with each device and interface.
type Reload struct {
	Devices    []Outcome `json:"devices"`
	Interfaces []Outcome `json:"interfaces"`
}

// Outcome is what was done with one device or interface. Fields are those that differ, by their
// names in a configuration file. With an error, the change failed in part.
type Outcome struct {
	Name   string   `json:"name"`
	Change string   `json:"change"` // kept, changed, rebuilt, added or removed
	Fields []string `json:"fields"`
	Error  string   `json:"error,omitempty"`
}

func (o Outcome) String() string {
	text := o.Change
	if len(o.Fields) > 0 {
		text += " (" + strings.Join(o.Fields, ", ") + ")"
	}
	if o.Error != "" {
		text += ": " + o.Error
	}
	return text
}

// Err returns what failed, or failed in part: one error for each device and interface.
func (r Reload) Err() (err error) {
	for _, o := range r.Devices {
		if o.Error != "" {
			err = errors.Join(err, fmt.Errorf("device %s: %s", o.Name, o))
		}
	}
	for _, o := range r.Interfaces {
		if o.Error != "" {
			err = errors.Join(err, fmt.Errorf("interface %s: %s", o.Name, o))
		}
	}
	return err
}
