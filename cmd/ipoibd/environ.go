package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// envPrefix begins the names of the environment variables that stand for flags of run:
// IPOIBD_LOG_LEVEL stands for --log-level.
const envPrefix = "IPOIBD_"

// fromVariable is the annotation of a flag that a variable has set: the name of the variable.
const fromVariable = "environment variable"

// origin names what has set a flag: the flag itself, or a variable.
func origin(flag *pflag.Flag) string {
	if name := flag.Annotations[fromVariable]; len(name) == 1 {
		return "environment variable " + name[0]
	}
	return "--" + flag.Name
}

// injected reports whether Kubernetes may have set a variable, because there is a Service called
// ipoibd or ipoibd-something. Such variables are ignored, so --port has none.
func injected(name string) bool {
	return strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT")
}

// fromEnvironment sets flags that the command line does not set. An empty variable counts as
// unset. It returns the names of variables that stand for no flag, and the mistakes in the others.
func fromEnvironment(fs *pflag.FlagSet, environ []string) (unknown []string, err error) {
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		suffix, ours := strings.CutPrefix(name, envPrefix)
		if !ours || injected(name) {
			continue
		}
		flag := fs.Lookup(strings.ToLower(strings.ReplaceAll(suffix, "_", "-")))
		switch {
		case flag == nil || flag.Name == "help":
			unknown = append(unknown, name)
		case flag.Changed || value == "":
		default:
			if wrong := fs.Set(flag.Name, value); wrong != nil {
				err = errors.Join(err, fmt.Errorf("environment variable %s: %w", name, plainly(wrong)))
				continue
			}
			flag.Annotations = map[string][]string{fromVariable: {name}}
		}
	}
	return unknown, err
}
