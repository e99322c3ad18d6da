// Answers with what Flux makes of texts and variables: JSON on standard input, JSON on standard output.
package main

import (
	"encoding/json"
	"os"

	"github.com/fluxcd/pkg/envsubst"
)

func main() {
	var cases []struct {
		Text string
		Vars map[string]string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	answers := []map[string]string{}
	for _, one := range cases {
		text, err := envsubst.Eval(one.Text, func(name string) (string, bool) {
			value, ok := one.Vars[name]
			return value, ok
		})
		answer := map[string]string{"text": text}
		if err != nil {
			answer["error"] = err.Error()
		}
		answers = append(answers, answer)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		panic(err)
	}
}
