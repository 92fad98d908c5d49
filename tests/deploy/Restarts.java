import java.util.stream.IntStream;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.runtime.executiongraph.failover.RestartBackoffTimeStrategyFactoryLoader;

/** Whether a job goes on after two workers died, each with the five tasks that it worked for: FOLDER of a config.yaml. */
public class Restarts {
    public static void main(String[] arguments) throws Exception {
        var strategy = RestartBackoffTimeStrategyFactoryLoader.createRestartBackoffTimeStrategyFactory(
                new RestartStrategies.FallbackRestartStrategyConfiguration(), new Configuration(),
                GlobalConfiguration.loadConfiguration(arguments[0]), true).create();
        for (var death = 0; death < 2; death++) {
            Thread.sleep(death == 0 ? 0 : strategy.getBackoffTime() + 50);
            IntStream.range(0, 5).forEach(task -> strategy.notifyFailure(new Exception("its worker died")));
        }
        System.out.println(strategy.canRestart());
    }
}
